"""The verbs that put an export to use on this machine: what each accepts and which step it calls."""

from __future__ import annotations

import argparse
from pathlib import Path

from toolkit.cli.lookup import export_folder
from toolkit.cli.parsing import EXPORT_HELP, FILE_HELP, Parser, Verb

_PORT_HELP = "0 takes any that is free; default: {}"


def _serve_arguments(parser: Parser) -> None:
    _served_file(parser)
    parser.add_argument("--port", type=_port, default=8080, metavar="N", help=_PORT_HELP.format(8080))
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default: 127.0.0.1, this machine alone")


def _served_file(parser: Parser) -> None:
    parser.add_argument("export", nargs="?", metavar="EXPORT", help=EXPORT_HELP)
    parser.add_argument("--file", metavar="NAME", help=FILE_HELP)


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text[:20]} is no port: 0 to 65535")
    return int(text)


def _serve(arguments: argparse.Namespace) -> int:
    from toolkit.serve import serve

    serve(export_folder(arguments.export), file=arguments.file, host=arguments.host, port=arguments.port)
    return 0


def _open_webui_arguments(parser: Parser) -> None:
    _served_file(parser)
    parser.add_argument(
        "--port", type=_port, default=3000, metavar="N", help="Open WebUI's: " + _PORT_HELP.format(3000)
    )
    parser.add_argument("--model-port", type=_port, default=0, metavar="N", help="the model's: " + _PORT_HELP.format(0))
    parser.add_argument("--environment", type=Path, metavar="FOLDER", help="where Open WebUI is or will be installed")


def _open_webui(arguments: argparse.Namespace) -> int:
    from toolkit.serve.webui import open_webui

    open_webui(
        export_folder(arguments.export),
        file=arguments.file,
        port=arguments.port,
        model_port=arguments.model_port,
        environment=arguments.environment,
    )
    return 0


SERVE = Verb("serve an export in OpenAI's protocol on this machine", _serve_arguments, _serve)
OPEN_WEBUI = Verb("set up and start Open WebUI in front of an export", _open_webui_arguments, _open_webui)
