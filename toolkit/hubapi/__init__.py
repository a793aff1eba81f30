"""The Hugging Face Hub as a gateway: permission, uploads, licences. What is pushed, and whether, the steps decide."""

from toolkit.hubapi.access import Access, check_access, require_access
from toolkit.hubapi.checkpoints import CheckpointUploads
from toolkit.hubapi.client import asking, client
from toolkit.hubapi.licences import Licence, base_licence, require_name
from toolkit.hubapi.portable import portable, portable_file
from toolkit.hubapi.upload import Item, remote_files, upload

__all__ = [
    "Access",
    "CheckpointUploads",
    "Item",
    "Licence",
    "asking",
    "base_licence",
    "check_access",
    "client",
    "portable",
    "portable_file",
    "remote_files",
    "require_access",
    "require_name",
    "upload",
]
