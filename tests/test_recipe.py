"""Facts about recipes: which load, where faults point, where values come from, and what hostile files do."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError, model_validator

from toolkit.errors import Fault, KeyFault, RecipeError, ToolkitError
from toolkit.recipe import DEFAULT_RECIPE, Recipe, list_recipes, load_recipe, load_resolved
from toolkit.recipe.docs import rewrite
from toolkit.recipe.faults import FaultFinder
from toolkit.recipe.tree import parse

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
GOOD = """\
description: small
model:
  source: org/name
  lora: {r: 8}
task:
  name: gsm8k
rewards:
  - name: correctness
    weight: 2
  - name: integer
"""


@pytest.fixture(autouse=True)
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def write(folder: Path, text: str | bytes, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def faults(path: object, *overrides: str) -> list[Fault]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path), list(overrides))
    return caught.value.faults


def places(found: list[Fault]) -> list[tuple[int | None, int | None, str]]:
    return [(fault.line, fault.column, fault.key) for fault in found]


# What loads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_loads_and_survives_json(name: str) -> None:
    loaded = load_recipe(name)
    assert loaded.name == name
    assert Recipe.model_validate_json(loaded.recipe.model_dump_json()) == loaded.recipe
    assert loaded.recipe.description


def test_the_default_and_the_practicals_are_listed() -> None:
    names = [entry.name for entry in list_recipes()]
    assert {DEFAULT_RECIPE, "gemma3-gsm8k", "llama32-gsm8k", "smoke"} <= set(names)
    assert names == sorted(names)


def test_the_practicals_have_the_published_values() -> None:
    gemma, llama = load_recipe("gemma3-gsm8k").recipe, load_recipe("llama32-gsm8k").recipe
    for recipe in (gemma, llama):
        grpo, model = recipe.grpo, recipe.model
        assert (model.max_seq_length, model.lora.r, model.gpu_memory_utilization) == (1024, 32, 0.6)
        assert len(model.lora.target_modules) == 7
        assert (grpo.learning_rate, grpo.adam_beta1, grpo.adam_beta2, grpo.weight_decay) == (
            5e-6,
            0.9,
            0.99,
            0.1,
        )
        assert (grpo.warmup_steps, grpo.lr_scheduler_type, grpo.optim) == (0.1, "cosine", "paged_adamw_8bit")
        assert (grpo.max_prompt_length, grpo.max_steps, grpo.max_grad_norm, recipe.seed) == (
            256,
            250,
            0.1,
            3407,
        )
        assert sorted(reward.name for reward in recipe.rewards) == sorted(
            ["xmlcount", "soft_format", "strict_format", "integer", "correctness"]
        )
    assert (gemma.model.lora.lora_alpha, gemma.grpo.num_generations, gemma.grpo.max_completion_length) == (
        32,
        6,
        768,
    )
    assert (llama.model.lora.lora_alpha, llama.grpo.num_generations, llama.grpo.max_completion_length) == (
        64,
        8,
        200,
    )


def test_numbers_are_read_as_yaml_1_2(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "grpo: {learning_rate: 5e-6, beta: 0, max_grad_norm: 1}\n")
    grpo = load_recipe(path).recipe.grpo
    assert (grpo.learning_rate, grpo.beta, grpo.max_grad_norm) == (5e-6, 0.0, 1.0)


def test_a_byte_order_mark_and_windows_line_ends_are_no_fault(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert load_recipe(path).recipe.description == "small"
    assert places(faults(write(tmp_path, b"\xef\xbb\xbf" + b"sed: 1\r\n" + GOOD.encode())))[0] == (
        1,
        1,
        "sed",
    )


def test_a_recipe_is_frozen() -> None:
    recipe = load_recipe(DEFAULT_RECIPE).recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.grpo.max_steps = 1  # type: ignore[misc]


# Where faults point -------------------------------------------------------------------------------

FAULTY = """\
description: x
learning_rate: 5
model:
  source: 5
  lora:
    rr: 5
    target_modules: [q_proj, q_prj]
task: {name: gsmk}
rewards:
  - name: xmlcount
  - name: correctnes
  - name: integer
    weigth: 5
  - nme: integer
  - correctness
  - {name: soft_format, weight: "3"}
grpo:
  learning_rate: "5e-6"
  num_generations: 1
  max_steps: true
  max_prompt_length: 900
  mask_truncated_completions: yes
  temperature: 0
  top_p: .nan
  save_steps:
export:
  gguf: [q4_k_m, q4_k]
eval: [5]
"""


def test_all_faults_are_listed_at_once_in_order_with_their_places(tmp_path: Path) -> None:
    assert places(faults(write(tmp_path, FAULTY))) == [
        (2, 1, "learning_rate"),
        (4, 11, "model.source"),
        (6, 5, "model.lora.rr"),
        (7, 30, "model.lora.target_modules[1]"),
        (8, 14, "task.name"),
        (11, 11, "rewards[1].name"),
        (13, 5, "rewards[2].weigth"),
        (14, 5, "rewards[3]"),
        (15, 5, "rewards[4]"),
        (16, 33, "rewards[5].weight"),
        (18, 18, "grpo.learning_rate"),
        (19, 20, "grpo.num_generations"),
        (20, 14, "grpo.max_steps"),
        (21, 22, "grpo.max_prompt_length"),
        (22, 31, "grpo.mask_truncated_completions"),
        (23, 16, "grpo.temperature"),
        (24, 10, "grpo.top_p"),
        (25, 3, "grpo.save_steps"),
        (27, 18, "export.gguf[1]"),
        (28, 7, "eval"),
    ]


def test_faults_say_what_was_expected_and_name_the_nearest(tmp_path: Path) -> None:
    said = {fault.key: f"{fault.message} | {fault.hint}" for fault in faults(write(tmp_path, FAULTY))}
    assert "grpo.learning_rate" in said["learning_rate"]
    assert said["model.source"] == "expected a text, got 5 | None"
    assert "did you mean r?" in said["model.lora.rr"]
    assert "did you mean q_proj?" in said["model.lora.target_modules[1]"]
    assert "did you mean gsm8k?" in said["task.name"]
    assert "did you mean correctness?" in said["rewards[1].name"]
    assert "did you mean weight?" in said["rewards[2].weigth"]
    assert "is nme meant to be name?" in said["rewards[3]"]
    assert "expected a mapping" in said["rewards[4]"]
    assert "without quotes" in said["grpo.learning_rate"]
    assert "at least 2, got 1" in said["grpo.num_generations"]
    assert "expected a whole number, got true" in said["grpo.max_steps"]
    assert "model.max_seq_length of at least" in said["grpo.max_prompt_length"]
    assert said["grpo.mask_truncated_completions"].endswith("got the text 'yes' | true")
    assert "did you mean q4_k" in said["export.gguf[1]"]


def test_missing_sections_are_named_at_the_top_of_the_recipe(tmp_path: Path) -> None:
    found = faults(write(tmp_path, "description: nothing else\n"))
    assert [(fault.line, fault.message) for fault in found] == [
        (1, "the key model is missing"),
        (1, "the key task is missing"),
        (1, "the key rewards is missing"),
    ]


@pytest.mark.parametrize(
    ("extra", "key", "works"),
    [
        (
            "grpo: {max_completion_length: 900}",
            "grpo.max_completion_length",
            "max_completion_length of at most 768",
        ),
        ("grpo: {per_device_train_batch_size: 7}", "grpo.per_device_train_batch_size", "8"),
        ("grpo: {delta: 1.1}", "grpo.delta", "2.2"),
        (
            "grpo: {importance_sampling_level: sequence, loss_type: dapo}",
            "grpo.importance_sampling_level",
            "grpo",
        ),
        ("export: {merged: false, gguf: []}", "export.gguf", "merged: true"),
        ("grpo: {resample_rounds: 1, scale_rewards: batch}", "grpo.resample_rounds", "scale_rewards: group"),
    ],
)
def test_keys_that_do_not_agree_are_refused_with_values_that_work(
    tmp_path: Path, extra: str, key: str, works: str
) -> None:
    (fault,) = faults(write(tmp_path, GOOD + extra + "\n"))
    assert (fault.key, fault.line) == (key, 11)
    assert works in str(fault.hint)


def test_a_rule_over_several_keys_is_silent_where_one_of_them_is_faulty(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "grpo: {max_completion_length: 3000}\n")
    found = faults(path, "model.max_seq_lenght=4096")
    assert [fault.key for fault in found] == ["model.max_seq_lenght"]


def test_duplicate_rewards_and_duplicate_keys_are_refused(tmp_path: Path) -> None:
    twice = GOOD.replace("  - name: integer\n", "  - name: correctness\n")
    assert places(faults(write(tmp_path, twice))) == [(10, 11, "rewards[1].name")]
    again = faults(write(tmp_path, GOOD + "seed: 1\nseed: 2\ngrpo:\n  beta: 0\n  beta: 1\n"))
    assert places(again) == [(12, 1, "seed"), (15, 3, "grpo.beta")]
    assert "first on line 11" in again[0].message


def test_an_empty_reward_list_is_refused(tmp_path: Path) -> None:
    (fault,) = faults(write(tmp_path, GOOD), "rewards=[]")
    assert (fault.key, fault.message) == ("rewards", "must not be empty")


def test_a_validator_can_say_which_key_below_it_is_wrong() -> None:
    class Inner(BaseModel):
        knobs: dict[str, int]

        @model_validator(mode="after")
        def _known(self) -> Inner:
            raise KeyFault("no knob b", at=("knobs", "b"), hint="did you mean a?")

    class Outer(BaseModel):
        inner: Inner

    root, _ = parse("inner:\n  knobs:\n    a: 1\n    b: 2\n", "x.yaml", "recipe")
    assert root is not None
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(root.plain())
    fault = FaultFinder(Outer, root).fault(caught.value.errors()[0])
    assert str(fault) == "x.yaml:4:5: inner.knobs.b: no knob b (did you mean a?)"


# Overrides ----------------------------------------------------------------------------------------


def test_overrides_are_yaml_and_may_contain_an_equals_sign(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    loaded = load_recipe(
        path, ["grpo.learning_rate=1e-5", "description=a=b", "export.gguf=[f16, q8_0]", "model.revision=null"]
    )
    assert loaded.recipe.grpo.learning_rate == 1e-5
    assert loaded.recipe.description == "a=b"
    assert loaded.recipe.export.gguf == ("f16", "q8_0")
    assert loaded.recipe.model.revision is None


def test_of_two_overrides_the_later_counts(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, GOOD), ["seed=1", "seed=2"]).recipe.seed == 2


@pytest.mark.parametrize("key", ["rewards.correctness.weight", "rewards.0.weight", "rewards[0].weight"])
def test_rewards_are_overridden_by_name_or_index(tmp_path: Path, key: str) -> None:
    loaded = load_recipe(write(tmp_path, GOOD), [f"{key}=3"])
    assert [reward.weight for reward in loaded.recipe.rewards] == [3.0, 1.0]
    assert loaded.provenance["rewards.correctness.weight"] == "command line"
    assert loaded.provenance["rewards.correctness.name"].startswith("recipe")


def test_faults_in_overrides_are_listed_with_the_others(tmp_path: Path) -> None:
    found = faults(
        write(tmp_path, GOOD + "sed: 1\n"),
        "grpo.lerning_rate=1", "rewards.corectness.weight=3", "foo", "grpo.beta=[", "grpo.top_k=x", "a..b=1",
        "extends=x",
    )  # fmt: skip
    on_command_line = [fault for fault in found if fault.file == "command line"]
    assert [fault.key for fault in found if fault not in on_command_line] == ["sed"]
    assert all(fault.place == "command line" for fault in on_command_line)
    said = {fault.key: str(fault.hint) for fault in on_command_line}
    assert "did you mean learning_rate?" in said["grpo.lerning_rate"]
    assert "did you mean correctness?" in said["rewards.corectness"]
    assert set(said) == {
        "grpo.lerning_rate", "rewards.corectness", "foo", "grpo.beta", "grpo.top_k", "a..b", "extends",
    }  # fmt: skip


# extends ------------------------------------------------------------------------------------------


def test_recipes_extend_each_other_and_every_value_knows_its_source(tmp_path: Path) -> None:
    write(tmp_path, GOOD + "grpo: {beta: 0.1, top_k: 5}\n", "base.yaml")
    write(tmp_path, "extends: base\nmodel: {lora: {lora_alpha: 4}}\ngrpo: {top_k: 6}\n", "middle.yaml")
    (tmp_path / "sub").mkdir()
    path = write(tmp_path, "extends: ../middle.yaml\ngrpo:\n  max_steps: 7\n", "sub/top.yaml")
    loaded = load_recipe(path, ["seed=4"])
    assert (loaded.recipe.model.lora.r, loaded.recipe.model.lora.lora_alpha) == (8, 4)
    assert (loaded.recipe.grpo.beta, loaded.recipe.grpo.top_k, loaded.recipe.grpo.max_steps) == (0.1, 6, 7)
    source = loaded.provenance
    assert source["grpo.beta"] == f"base recipe {tmp_path / 'base.yaml'}:11"
    assert source["grpo.top_k"] == f"base recipe {tmp_path / 'middle.yaml'}:3"
    assert source["grpo.max_steps"] == f"recipe {path}:3"
    assert (source["seed"], source["grpo.top_p"]) == ("command line", "default")
    assert set(source) == set(loaded.values)


def test_a_list_replaces_and_another_task_replaces(tmp_path: Path) -> None:
    write(tmp_path, GOOD.replace("  name: gsm8k\n", "  name: gsm8k\n  max_train: 5\n"), "base.yaml")
    path = write(tmp_path, "extends: base\nrewards: [{name: integer}]\n")
    assert [reward.name for reward in load_recipe(path).recipe.rewards] == ["integer"]
    task = load_recipe(path, ["task.dataset=chain_sum", "task.name=reasoning_gym"]).recipe.task
    assert task.name == "reasoning_gym"


def test_a_fault_of_a_base_recipe_points_into_its_file(tmp_path: Path) -> None:
    base = write(tmp_path, GOOD + "grpo: {bta: 0.1}\n", "base.yaml")
    (fault,) = faults(write(tmp_path, "extends: base\nseed: 5\n"))
    assert (fault.file, fault.line, fault.column) == (str(base), 11, 8)


def test_circles_are_named(tmp_path: Path) -> None:
    write(tmp_path, "extends: two\n", "one.yaml")
    write(tmp_path, "extends: three.yaml\n", "two.yaml")
    write(tmp_path, "extends: one\n", "three.yaml")
    (fault,) = faults(tmp_path / "one.yaml")
    assert (fault.file, fault.line, fault.column, fault.key) == (
        str(tmp_path / "three.yaml"),
        1,
        10,
        "extends",
    )
    steps = [part.rsplit("/", 1)[-1] for part in fault.message.split(": ", 1)[1].split(" -> ")]
    assert steps == ["one.yaml", "two.yaml", "three.yaml", "one.yaml"]
    assert "circle" in faults(write(tmp_path, "extends: self\n", "self.yaml"))[0].message


@pytest.mark.parametrize(
    ("parent", "near"), [("gema3-gsm8k", "gemma3-gsm8k"), ("./bsae.yaml", "base.yaml"), ("bas", "base")]
)
def test_a_missing_parent_is_an_error_with_the_nearest_name(tmp_path: Path, parent: str, near: str) -> None:
    write(tmp_path, GOOD, "base.yaml")
    (fault,) = faults(write(tmp_path, f"seed: 1\nextends: {parent}\n"))
    assert (fault.line, fault.column, fault.key) == (2, 10, "extends")
    assert near in str(fault.hint)


def test_an_unknown_recipe_is_an_error_with_the_nearest_name() -> None:
    assert "did you mean gemma3-gsm8k?" in str(faults("gemma-gsm8k")[0].hint)


# Hostile files ------------------------------------------------------------------------------------

_BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12)
)
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "the file is empty"),
    "only a comment": ("# nothing\n", "the file is empty"),
    "null": ("~\n", "the file is empty"),
    "list": ("- a\n", "a recipe is a mapping"),
    "scalar": ("hello\n", "a recipe is a mapping"),
    "tab": ("grpo:\n\tbeta: 1\n", "tab"),
    "not UTF-8": (b"a: 1\nb: \xff\n", "not UTF-8"),
    "UTF-16": ("a: 1\n".encode("utf-16"), "not UTF-8"),
    "NUL": (b"a: \x00\n", "control character"),
    "binary": (bytes(range(256)), "not UTF-8"),
    "alias bomb": (_BOMB, "values"),
    "recursive alias": ("a: &a [*a]\n", "nested deeper"),
    "brackets": ("[" * 60_000, "nested deeper"),
    "braces": ("{a: " * 15_000, "nested deeper"),
    "indents": ("\n".join(" " * level + "a:" for level in range(300)), "nested deeper"),
    "unclosed": ("a: {b: 1\n", "not valid YAML"),
    "undefined alias": ("a: *b\n", "undefined alias"),
    "two documents": ("a: 1\n---\nb: 1\n", "document"),
    "YAML 1.1": ("%YAML 1.1\n---\na: 1\n", "directives"),
    "too long": ("#" * 70_000, "larger than"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_hostile_files_are_one_clear_fault_within_a_second(tmp_path: Path, name: str) -> None:
    text, said = HOSTILE[name]
    path = write(tmp_path, text)
    start = time.perf_counter()
    (fault,) = faults(path)
    assert time.perf_counter() - start < 1
    assert said in fault.message
    assert fault.file == str(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("seed: !!python/object:os.system x", "tags are not supported"),
        ("<<: {a: 1}", "merge keys"),
        ("5: x", "a key must be text"),
        ("? [a]\n: 1", "a key must be text"),
        ("seed: " + "9" * 5000, "cannot be read as a int"),
        ('description: "\\ud800"', "surrogate"),
        ("seed: 99999999999999999999999", "below"),
        ("grpo: {learning_rate: 1e999}", "finite"),
        ("grpo: {learning_rate: nan}", "expected a number, got the text 'nan'"),
    ],
)
def test_odd_values_are_faults_not_tracebacks(tmp_path: Path, line: str, said: str) -> None:
    (fault,) = faults(write(tmp_path, GOOD.replace("description: small\n", "") + line + "\n"))
    assert said in fault.message
    assert fault.line == 10


@pytest.mark.parametrize(
    "given", ["", ".", "/", "no/such.yaml", "/dev/null", "a" * 5000, "b/" * 3000, "x\0y", "recipes"]
)
def test_what_is_no_recipe_file_is_a_fault(given: str) -> None:
    assert len(faults(given)) == 1


def test_a_broken_recipe_does_not_break_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    write(tmp_path / "recipes", "a: [", "broken.yaml")
    monkeypatch.chdir(tmp_path)
    entries = {entry.name: entry.description for entry in list_recipes()}
    assert entries["broken"].startswith("cannot be read")
    assert DEFAULT_RECIPE in entries


# The recipe of a run ------------------------------------------------------------------------------


def test_a_resolved_recipe_is_read_back_as_it_was(tmp_path: Path) -> None:
    recipe = load_recipe(DEFAULT_RECIPE, ["seed=11"]).recipe
    path = write(tmp_path, recipe.model_dump_json(), "recipe.json")
    assert load_resolved(path).recipe == recipe
    path.write_text(json.dumps({"seed": 1}))
    with pytest.raises(ToolkitError, match="not a resolved recipe"):
        load_resolved(path)
    with pytest.raises(ToolkitError, match="cannot be read"):
        load_resolved(tmp_path / "none.json")


# Documentation ------------------------------------------------------------------------------------


def test_the_table_of_keys_in_the_docs_is_the_one_the_models_give() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert rewrite(text) == text, "run: python -m toolkit.recipe.docs"


def test_every_recipe_key_is_documented() -> None:
    def bare(model: type) -> list[str]:
        return [f"{model.__name__}.{name}" for name, field in model.model_fields.items() if not field.description]

    from toolkit.recipe import schema

    sections = [
        schema.Recipe,
        schema.Model,
        schema.Lora,
        schema.Warmup,
        schema.Grpo,
        schema.Eval,
        schema.Export,
        schema.Hub,
    ]
    assert [name for section in sections for name in bare(section)] == []


def test_a_punishment_for_length_begins_before_the_limit(tmp_path: Path) -> None:
    text = (
        GOOD.replace("rewards:", "rewards:\n  - {name: overlong, cache: 300}") + "grpo: {max_completion_length: 256}\n"
    )
    (fault,) = faults(write(tmp_path, text))
    assert (fault.key, "fifth" in str(fault.hint)) == ("rewards[0].cache", True)
    assert load_recipe(str(write(tmp_path, text.replace("cache: 300", "cache: 300, max_length: 400"))))
