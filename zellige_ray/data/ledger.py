"""The ledger: an append-only file of which samples each committed step used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zellige_ray.data.audit import LedgerReport, PassReport, verify
from zellige_ray.data.index import Index
from zellige_ray.data.record import FORMAT, QUARANTINED, REWIND, Record, parse_line, read, read_header, valid_commits
from zellige_ray.errors import DataError

NAME = "ledger.jsonl"
__all__ = [
    "FORMAT",
    "NAME",
    "QUARANTINED",
    "REWIND",
    "Ledger",
    "LedgerReport",
    "PassReport",
    "Record",
    "read",
    "read_header",
    "valid_commits",
    "verify",
]


class Ledger:
    """The one writer of a ledger file; what `append` returned from is on the disk.

    Opening an existing file repairs its end: a complete last line without newline gets one (it is committed), a torn
    one is cut off (it never was).
    """

    def __init__(self, path: str | Path, index: Index | None = None) -> None:
        """Opens or creates; a new file starts with a header that names the training samples of `index`.

        Raises DataError when the file is unreadable, or belongs to another data set than `index`.
        """
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._mend()
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            if os.fstat(self._file).st_size == 0:
                self._write(_header(index))
                _sync_folder(self.path.parent)
        except OSError as fault:
            raise DataError(f"cannot open the ledger {self.path}: {fault.strerror or fault}") from fault
        if index is not None:
            header = read_header(self.path)
            if header["fingerprint"] not in ("", index.fingerprint):
                os.close(self._file)
                raise DataError(
                    f"ledger {self.path} is of a data set with fingerprint {header['fingerprint'][:16]}, this one is "
                    f"{index.fingerprint[:16]}; restore the data, or start a new run folder"
                )

    def append(self, record: Record) -> None:
        """Writes one line and syncs it. Raises DataError when the disk refuses; the file is then as before."""
        try:
            self._write(record.to_json())
        except OSError as fault:
            raise DataError(
                f"cannot append step {record.step} to {self.path}: {fault.strerror or fault}; free some space"
            ) from fault

    def records(self) -> list[Record]:
        """Everything appended so far."""
        return list(read(self.path))

    def last_commit(self) -> Record | None:
        """The newest commit that no rewind made void."""
        commits = valid_commits(self.records())
        return commits[-1] if commits else None

    def close(self) -> None:
        """Closes the file; a closed ledger can't be appended to."""
        os.close(self._file)

    def _write(self, value: dict[str, Any]) -> None:
        data = (json.dumps(value, separators=(",", ":")) + "\n").encode()
        size = os.fstat(self._file).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, size)
            raise

    def _mend(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        if not data:
            return
        start = data.rstrip(b"\n").rfind(b"\n") + 1
        whole = parse_line(data[start:]) is not None
        if whole and data.endswith(b"\n"):
            return
        with self.path.open("r+b") as file:
            if whole:
                file.seek(0, os.SEEK_END)
                file.write(b"\n")
            else:
                file.truncate(start)
            file.flush()
            os.fsync(file.fileno())


def _header(index: Index | None) -> dict[str, Any]:
    ids = list(index.ids) if index is not None else []
    header = {
        "kind": "header",
        "format": FORMAT,
        "fingerprint": index.fingerprint if index is not None else "",
        "ids": ids,
    }
    return header | ({"ratios": dict(index.ratios)} if index is not None and index.ratios else {})


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
