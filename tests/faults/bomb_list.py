"""Which hostile files there are, and which command reads each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.bombs import (
    KIT,
    MOST,
    Bomb,
    arrays,
    bomb_of_zeros,
    declared,
    full,
    gzipped,
    header,
    kit,
    kit_of_declared_size,
    kit_of_experts,
    kit_of_one_entry,
    kit_of_zeros,
    laughs,
    many_members,
    numbered,
    parquet,
    pickled,
    repeat,
    safetensors,
    tensor_entries,
)
from helpers.tampering import reseal
from redx.io.manifest import Entry, format_manifest

Writer = Callable[[Path], object]
FEATURES = "run features --preset quick --data {} --study none --limit 200 --out out"
TEXTS = "run jsonl --preset quick --data {} --backbone lm --study none --domain domain --limit 100 --out out"
ROWS = "experts train texts --domain new --data {} --out new"
ADD = "experts add run {}"
KITS = "experts train --kit {} --domain new --data run.npz --out new"
CERTIFY = "certify --parts {} --risk 0.1"
INSPECT, SHRINK = "inspect {}", "shrink {} --trainable-last-n-layers 1 --out slim.safetensors"
PACKED: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
ROW = b'{"text":"a b","label":"yes","domain":"d"}\n'


def long_and_short(length: int) -> Callable[[Path], object]:
    """Return a writer of one text of so many characters and of many short ones, which are as long when packed."""
    return repeat(ROW + ROW.replace(b"yes", b"no"), ROW.replace(b"a b", b"x" * length))


def one_text(pa: Any) -> Any:
    """Return a table of one text that is compressed to a thousandth and less."""
    return pa.table({"text": ["x" * 10**9]})


def chosen(bombs: list[tuple[str, Writer]], words: str) -> list[tuple[str, Writer]]:
    """Return those bombs of which one of the words, with `|` between them, is the name."""
    return [(name, write) for name, write in bombs if name in words.split("|")]


def text_bombs() -> list[Bomb]:
    """Return tables for runs, and some of them for the training of an expert as well."""
    cells = ",".join(f"c{number}" for number in range(100)).encode()
    tables: list[tuple[str, str, Writer]] = [
        ("one line", "t.jsonl", repeat(b"x", b'{"text": "', b'", "label": "yes", "domain": "d"}\n')),
        ("one wide line", "t.jsonl", repeat(b"x", '{"text": "😀'.encode(), b'", "label": "yes", "domain": "d"}\n')),
        ("nested lists", "t.jsonl", repeat(b"[")),
        ("nested objects", "t.jsonl", repeat(b'{"a":')),
        ("empty lists in a line", "t.jsonl", repeat(b"[],", b'{"text": [', b'[]], "label": "yes"}\n')),
        ("objects in a line", "t.jsonl", repeat(b'{"":0},', b'{"text": [', b'{}], "label": "yes"}\n')),
        ("keys in a line", "t.jsonl", numbered('"%d":0,', b"{", b'"text": "a"}\n')),
        ("rows", "t.jsonl", repeat(ROW)),
        ("rows of few bytes", "t.jsonl", repeat(b"{}\n")),
        ("rows of many keys", "t.jsonl", repeat(
            ROW[:-2] + b"".join(b',"%02d":"%02d"' % (n, n) for n in range(40)) + b"}\n")),
        ("rows of lists", "t.jsonl", repeat(ROW[:-2] + b',"a":[' + b"[]," * 200 + b"[]]}\n")),
        ("rows with one wide", "t.jsonl", repeat(ROW, ROW.replace(b"a b", "😀".encode()))),
        ("a long and short texts", "t.jsonl", long_and_short(2000)),
        ("a very long and short texts", "t.jsonl", long_and_short(10**7)),
        ("long labels", "t.jsonl", repeat(ROW.replace(b"yes", b"y" * 9999))),
        ("a label for every row", "t.jsonl", numbered('{"text":"a","label":%d,"domain":"d"}\n')),
        ("blank lines", "t.jsonl", repeat(b"\n")),
        ("one cell", "t.csv", repeat(b"x", b"text,label,domain\n", b",yes,d\n")),
        ("quoted cells", "t.csv", repeat(b'"' + b"x\n" * 60_000 + b'",yes,d\n', b"text,label,domain\n")),
        ("columns", "t.csv", numbered("%d,", b"", b"text,label,domain\n")),
        ("cells in a row", "t.csv", repeat(b",", b"text,label,domain\n")),
        ("rows", "t.csv", repeat(b"ab,yes,d\n", b"text,label,domain\n")),
        ("rows of many cells", "t.csv", repeat(b"ab," * 102 + b"d\n", b"text,label,domain," + cells + b"\n")),
        ("rows of wide cells", "t.csv", repeat("é😀,".encode() * 102 + b"d\n", b"text,label,domain," + cells + b"\n")),
        ("rows of another length", "t.csv", repeat(b"a\n", b"text,label,domain\n")),
        ("blank lines", "t.csv", repeat(b"\n")),
        ("compressed text", "t.parquet", parquet(one_text, **PACKED)),
        ("repeated numbers", "t.parquet", parquet(lambda pa: pa.table(
            {name: pa.array([7], "int64").take(pa.array(bytes(2**23), "uint8")) for name in ("text", "label")}))),
        ("repeated texts", "t.parquet", parquet(lambda pa: pa.table(
            {name: pa.DictionaryArray.from_arrays(pa.array(bytes(2**21), "uint8"), ["ab" * 9]) for name in
             ("text", "label", "domain", "d")}))),
        ("columns", "t.parquet", parquet(lambda pa: pa.table({str(n): [1] for n in range(100_000)}))),
        ("lists", "t.parquet", parquet(lambda pa: pa.table(
            {"text": pa.ListArray.from_arrays([0, 10**8, 2 * 10**8], pa.array(bytes(2 * 10**8), "int8"))}))),
    ]  # fmt: skip
    every = TEXTS.replace(" --limit 100", "")  # all texts are packed together
    runs = [Bomb(name, file, write, every if "short" in name else TEXTS) for name, file, write in tables]
    again = ("rows", "a very long and short texts", "long labels", "repeated texts")
    return runs + [Bomb(name, file, write, ROWS) for name, file, write in tables if name in again]


def resealed(write: Writer) -> Writer:
    """Return a writer of a file in the run whose manifests list it as it is, so that it is read."""

    def write_both(path: Path) -> None:
        write(path)
        run = path.parent if path.parent.name == "run" else path.parents[1]
        reseal(run / "seed-0")
        reseal(run)

    return write_both


def json_bombs() -> list[Bomb]:
    """Return JSON files of several kinds."""
    contents: list[tuple[str, Writer]] = [
        ("empty lists", repeat(b"[],", b'{"a": [', b"[]]}")),
        ("objects", repeat(b'{"":0},', b'{"a": [', b"{}]}")),
        ("keys", numbered('"%d":0,', b'{"domain":"new","metrics":{', b'"a":0}}')),
        ("keys at the limit", numbered('"%d":0,', b'{"domain":"new","metrics":{', b'"a":0}}', 2**21 - 10)),
        ("objects at the limit", repeat(b'{"":0},', b'{"domain":"new","banks":{"a":[', b"{}]}}", 7 * (2**20 - 20))),
        ("banks", numbered('"%d":{},', b'{"domain":"new","banks":{', b'"a":0}}')),
        ("numbers", repeat(b"1e9,", b'{"domain":"new","base":{"probe":[[', b"0]]}}")),
        ("classes", repeat(b'"a",', b'{"domain":"new","classes":[', b'"a"]}')),
        ("escapes", repeat(b"\\u0041", b'{"domain":"', b'"}')),
        ("wide text", repeat(b"x", '{"domain":"😀'.encode(), b'"}')),
        ("nested", repeat(b"[", b'{"domain":')),
    ]
    inspected = [Bomb(name, "t.json", write, INSPECT) for name, write in contents]
    hard = chosen(contents, "keys|keys at the limit|banks|numbers|classes")
    added = [Bomb(name, "new/expert.json", write, ADD) for name, write in hard]
    runs = [Bomb(name, "run/summary.json", resealed(write), "report run") for name, write in hard[:2]]
    runs += [Bomb(name, "run/seed-0/model.json", resealed(write), "experts list run") for name, write in hard[:2]]
    return [*inspected, *added, *runs]


def tensor_bombs() -> list[Bomb]:
    """Return arrays, safetensors files, `.pt` files and files of MNIST."""
    two = full((1_500_000,), "i8")
    y, few = full((400,), "u1"), (400, 6)
    features: list[tuple[str, Writer]] = [
        ("zeros", bomb_of_zeros),
        ("declared shape", declared(10**9, 10**3)),
        ("declared axes", declared(*[2**40] * 2)),
        ("members", many_members),
        ("bytes at the limit", arrays(x=full((2**20, 48), "u1"), y=full((2**20,), "u1"))),
        ("floats at the limit", arrays(x=full((2**20, 48), "f8"), y=full((2**20,), "u1"))),
        ("rows", arrays(x=full((2**20, 1), "u1"), y=full((2**20,), "U3", "%d"), domain=full((2**20,), "U3", "%d"))),
        ("columns", arrays(x=full((400, 120_000), "u1"), y=y, domain=y)),
        ("long labels", arrays(x=full(few, "u1"), y=full((400,), "U80000", "%d"))),
        ("not a number", arrays(x=full((2**20, 6), "f4"), y=lambda: two()[: 2**20] * float("nan"))),
        ("whole numbers", arrays(False, x=full((1_500_000, 2), "f8"), y=two, domain=two)),
    ]  # fmt: skip
    limited = FEATURES + " --domain domain"
    runs = [Bomb(name, "t.npz", write, limited if "rows" in name else FEATURES) for name, write in features]
    again = chosen(features, "bytes at the limit|rows")
    experts = [Bomb(name, "t.npz", write, ROWS.replace("texts", "run")) for name, write in again]
    heads: list[tuple[str, Writer]] = [
        ("tensors", safetensors(lambda: tensor_entries(MOST // 60, 0))),
        ("tensors at the limit", safetensors(lambda: tensor_entries(100_000, *[0] * 8))),
        ("metadata", safetensors(lambda: {"__metadata__": {str(n): "x" for n in range(MOST // 14)}})),
        ("long metadata", safetensors(lambda: {"__metadata__": {"a": "x" * (MOST - 100)}})),
        ("JSON in metadata", safetensors(lambda: {"__metadata__": {"a": "[" + "[]," * (MOST // 3 - 99) + "1]"}})),
        ("declared size", safetensors(lambda: {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}})),
        ("one tensor", safetensors(
            lambda: {"a": {"dtype": "U8", "shape": [MOST - 999], "data_offsets": [0, MOST - 999]}}, MOST - 999)),
    ]  # fmt: skip
    tensors = [Bomb(name, "t.safetensors", write, INSPECT) for name, write in heads]
    hard = chosen(heads, "tensors at the limit|metadata|one tensor")
    tensors += [Bomb(name, "t.safetensors", write, SHRINK) for name, write in hard]
    tensors += [Bomb(name, "t.safetensors", write, "evaluate {}") for name, write in hard]
    tensors += [Bomb(name, "new/expert.safetensors", write, ADD) for name, write in hard]
    long = MOST - 999
    reserve = b"c__builtin__\nbytearray\n\x8a\5\0\0\0\0\2\x85R"  # bytearray(2**33)
    programs: list[tuple[str, Writer]] = [
        ("reserved bytes", pickled(b"\x80\2}X\1\0\0\0a" + reserve + b"s.")),
        ("lists in a program", pickled(lambda: b"\x80\2](" + b"]" * (MOST - 999) + b"e.")),
        ("lists at the limit", pickled(lambda: b"\x80\2](" + b"]" * (8 * 10**6) + b"e.")),
        ("numbers in a program", pickled(lambda: b"\x80\2](" + b"K\1" * (MOST // 2 - 999) + b"e.")),
        ("lists of one list", pickled(laughs())),
        ("members", many_members),
        ("zeros", bomb_of_zeros),
        ("long text", pickled(lambda: b"\x80\2}X\1\0\0\0aX" + long.to_bytes(4, "little") + b"x" * long + b"s.")),
    ]  # fmt: skip
    states = [Bomb(name, "t.pt", write, INSPECT) for name, write in programs]
    states += [Bomb(name, "t.pt", write, SHRINK) for name, write in programs[:1]]
    labels: dict[str, Any] = {name: full((2**20,), "u1") for name in ("labels", "domains")}
    outputs: list[tuple[str, Writer]] = [
        ("outputs of zeros", arrays(
            base=full((2**20, 4), "f4"), residuals=full((2**20, 2, 4), "f4"), gates=full((2**20, 2), "f4"), **labels)),
        ("bytes as outputs", arrays(
            base=full((2**20, 5), "u1"), residuals=full((2**20, 6, 5), "u1"), gates=full((2**20, 6), "u1"), **labels)),
        ("many classes", arrays(base=full((2, 5 * 10**6), "f4"), residuals=full((2, 3, 5 * 10**6), "f4"),
                                gates=full((2, 3), "f4"), labels=full((2,), "u1"), domains=full((2,), "u1"))),
        ("declared shape", declared(10**9, 10**3)),
    ]  # fmt: skip
    certified = [Bomb(name, "t.npz", write, CERTIFY) for name, write in outputs]
    other = [
        *certified,
        Bomb("zeros", "mnist", gzipped, "run mnist --preset quick --data-dir {} --out out"),
        Bomb("declared shape", "t.npy", lambda path: path.write_bytes(header("<f4", 2**40, 2**40)), INSPECT),
        Bomb("questions", "t.jsonl", repeat(b'{"question":"1 plus 1","answer":2}\n'),
             "run addition --preset quick --data {} --backbone lm --study none --limit 100 --out out"),
    ]  # fmt: skip
    return [*runs, *experts, *tensors, *states, *other]


def kit_bombs() -> list[Bomb]:
    """Return kits, each the kit of the template with one hostile entry or none of its own."""
    head = b'{"format":1,"task":"t","preset":"p","seed":0,"fingerprint":{},"config":{'
    kits: list[tuple[str, Writer]] = [
        ("packed zeros", kit_of_zeros),
        ("members", many_members),
        ("declared size", kit_of_declared_size),
        ("the same bytes five times", kit_of_one_entry),
        ("a kit in a kit", kit("base.safetensors", lambda path: bomb_of_zeros(path))),
        ("zeros", kit("base.safetensors", repeat(b"\0", most=KIT))),
        ("keys in kit.json", kit("kit.json", numbered('"%d":0,', head, b'"a":0}}', size=KIT))),
        ("keys at the limit in kit.json", kit("kit.json", numbered('"%d":0,', head, b'"a":0}}', 2**21 - 20))),
        ("nested lists in kit.json", kit("kit.json", repeat(b"[", most=KIT))),
        ("classes in model.json", kit("model.json", repeat(
            b'"a",', b'{"domains":["0"],"belongs":[0],"unit":1,"classes":[', b'"a"]}', 4 * (2**21 - 100)))),
        ("tensors in the base", kit("base.safetensors", safetensors(lambda: tensor_entries(10**5, *[0] * 8)))),
        ("shared rows", kit("shared.safetensors", safetensors(lambda: shared_entries(10**6), 40 * 10**6))),
        ("shared features", kit("shared.safetensors", safetensors(lambda: shared_entries(1, 10**7), 40 * 10**6 + 16))),
        ("wide experts", kit_of_experts(hidden=2**15)),
        ("experts at the limit", kit_of_experts(shape="mlp", hidden=4000, depth=2)),
        ("huge experts", kit_of_experts(shape="mlp", hidden=2**16, depth=32)),
    ]  # fmt: skip
    return [Bomb(name, "hostile.zip", write, KITS) for name, write in kits]


def shared_entries(rows: int, width: int = 6) -> dict[str, Any]:
    """Return the header of shared examples."""
    end = 4 * rows * width
    entries: dict[str, Any] = {"inputs": {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, end]}}
    for name in ("labels", "domains"):
        entries[name] = {"dtype": "I64", "shape": [rows], "data_offsets": [end, end := end + 8 * rows]}
    return entries


def manifest_bombs() -> list[Bomb]:
    """Return manifests and signatures, and files of keys."""
    entry = '"%d":{"sha256":"' + "0" * 64 + '","size":0},'
    last = b'"a":{"sha256":"","size":0}}'
    start, signed = b'{"redx_manifest":1,"files":{', b'{"redx_signature":1,"key":"","signature":"","files":{'
    manifests: list[tuple[str, Writer]] = [
        ("files that are missing", lambda path: path.write_bytes(missing_files())),
        ("files", numbered(entry, start, last + b"}")),
        ("keys", numbered('"%d":{},', start, b'"a":{}}}')),
        ("keys at the limit", numbered('"%d":{},', start, b'"a":{}}}', 10**6)),
        ("nested", repeat(b'{"a":', start)),
        ("empty lists", repeat(b"[],", b'{"redx_manifest":1,"files":[', b"[]]}")),
        ("long name", repeat(b"x", start + b'"', b'":{"sha256":"","size":0}}}')),
    ]
    verbs = ("verify run", "experts list run", "certify run --json")
    bombs = [Bomb(name, "run/seed-0/manifest.json", write, verb) for name, write in manifests[:1] for verb in verbs]
    bombs += [
        Bomb(name, "run/seed-0/manifest.json", write, verb) for name, write in manifests[1:] for verb in verbs[:2]
    ]
    bombs += [Bomb(name, "run/manifest.json", write, verbs[0]) for name, write in manifests]
    signatures: list[tuple[str, Writer]] = [
        ("files", numbered(entry, signed, last + b"}")),
        ("keys", numbered('"%d":{},', signed, last + b"}")),
        ("nested", repeat(b'{"a":', signed)),
        ("signature", repeat(b"A", b'{"redx_signature":1,"files":{},"key":"","signature":"', b'"}')),
        ("key", repeat(b"A", b'{"redx_signature":1,"files":{},"signature":"","key":"', b'"}')),
    ]
    bombs += [Bomb(name, "run/signature.json", write, "verify run --key me.key.pub") for name, write in signatures]
    lines = repeat(b"A", b"ed25519 ")
    bombs += [Bomb("public key", "t.pub", lines, "verify run --key {}")]
    return [*bombs, Bomb("private key", "t.key", repeat(b"A", b"-----BEGIN PRIVATE KEY-----\n"), "sign run --key {}")]


def missing_files() -> bytes:
    """Return a manifest as redx writes it, of as many files as fit, none of which is there."""
    entry = Entry("0" * 64, 0)
    return format_manifest({f"parts/{number:07}": entry for number in range(MOST // 140)})


def all_bombs() -> list[Bomb]:
    """Return every hostile file."""
    return [*text_bombs(), *json_bombs(), *tensor_bombs(), *kit_bombs(), *manifest_bombs()]
