"""Runs behind a URL: complete checkpoints copied there with the ledger, and a run fetched from there to go on.

A run's folder there is laid out as here; a checkpoint's marker is written last and removed first, so that only complete
ones are seen.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from zellige_ray import urls
from zellige_ray.errors import CheckpointError
from zellige_ray.training.checkpoint_files import FOLDER, MARKER, damage

_STEP = re.compile(rf"(?P<run>.+)/{FOLDER}/(?P<step>step-\d+)/?$")


def copy_out(run: Path, checkpoint: Path, url: str, keep: int, beside: tuple[str, ...]) -> None:
    """Copies a complete checkpoint, and the run's files `beside` it first; then all but the `keep` newest there go.

    url: of the run's folder there. Raises OSError.
    """
    for name in beside:
        if (run / name).is_file():
            urls.write(urls.join(url, name), (run / name).read_bytes())
    urls.put(checkpoint, urls.join(url, FOLDER, checkpoint.name), last=MARKER)
    for old in _complete(urls.listing(url))[:-keep]:
        urls.remove(urls.join(url, FOLDER, old), first=MARKER)


def fetch_run(url: str, parent: Path) -> Path:
    """The run folder, made below `parent`, of a run behind a URL, or of one of its checkpoints: what goes on from it.

    Raises CheckpointError: no complete checkpoint is there, a folder of this name is here, the store refuses.
    """
    named = _STEP.match(url)
    home, step = (named["run"], named["step"]) if named else (url.rstrip("/"), None)
    target = parent / home.rpartition("/")[2]
    if target.exists():
        raise CheckpointError(f"{target} is here already: resume={target}, or move it away to fetch the run again")
    draft = parent / f".{target.name}.fetched"
    shutil.rmtree(draft, ignore_errors=True)
    try:
        there = urls.listing(home)
        complete = _complete(there)
        if not complete or (step is not None and step not in complete):
            raise CheckpointError(
                f"{step or 'a complete checkpoint'} is not there: the store has {', '.join(complete) or 'none'} below "
                f"{target.name}/{FOLDER}; check resume"
            )
        chosen = step or complete[-1]
        urls.fetch(home, draft, [n for n in there if "/" not in n or n.startswith(f"{FOLDER}/{chosen}/")])
        why = damage(draft / FOLDER / chosen)
        if why:
            raise CheckpointError(f"{chosen} of {target.name}, as the store gave it, is damaged: {why}")
        draft.rename(target)
    except OSError as fault:
        raise CheckpointError(f"cannot fetch the run {target.name} to {parent}: {fault}") from fault
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _complete(names: dict[str, int]) -> list[str]:
    """Checkpoints with a marker, oldest first."""
    found = (re.fullmatch(rf"{FOLDER}/(step-\d+)/{MARKER}", name) for name in names)
    return sorted(match[1] for match in found if match)
