"""Models behind URLs: fetched into this machine's cache, under a name that changes with what is there."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from pathlib import Path

from zellige_ray import urls
from zellige_ray.errors import ModelError
from zellige_ray.files import user_cache


def fetched(url: str) -> Path:
    """The folder that holds what is behind a URL; at once when it was fetched before, by names and sizes.

    Several processes may ask at once: each fetches under a name of its own, and the first to be done is kept. Raises
    ConfigError without the URL's driver, ModelError when nothing is there or the store refuses.
    """
    urls.check_url(url, "model.init_from")
    try:
        there = urls.listing(url)
        if not there:
            raise ModelError("there is no model at the URL of model.init_from: nothing lies below it")
        name = hashlib.blake2b(repr((url, sorted(there.items()))).encode(), digest_size=8).hexdigest()
        target = user_cache() / "models" / name
        if not target.is_dir():
            draft = target.with_name(f".{name}.{secrets.token_hex(4)}.part")
            try:
                urls.fetch(url, draft, there)
                if not target.is_dir():
                    draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as fault:
        raise ModelError(f"cannot fetch the model of model.init_from: {fault}") from fault
    return target
