"""What a run reads: the latents of its one data set, or those of several as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from zellige_ray.config import DataConfig
from zellige_ray.data.cache import LatentCache
from zellige_ray.data.encode import Progress, prepare
from zellige_ray.data.index import Index
from zellige_ray.data.report import EncodeReport
from zellige_ray.errors import DataError
from zellige_ray.models.specs import ModelSpec

_ALIKE = ("codec", "text", "text_dim")  # settings of a cache


@dataclass(frozen=True, slots=True)
class Latents:
    """Samples and where they are. cache: of the only data set, or of a mixture's first; its `read` reads all of them.

    index: in a mixture the files of samples are whole paths.
    """

    cache: LatentCache
    index: Index


def gather(
    config: DataConfig,
    spec: ModelSpec,
    progress: Progress | None = None,
    told: Callable[[str, EncodeReport], None] | None = None,
) -> Latents:
    """The latents of every data set of a configuration, encoded where they are missing.

    told: gets the name of a data set, empty where there is one, and its report; see `prepare`. Raises DataError like
    `prepare`, and for data sets whose latents or captions are not alike.
    """

    def teller(name: str) -> Callable[[EncodeReport], None] | None:
        return None if told is None else lambda report: told(name, report)

    caches = {name: prepare(part, spec, progress, teller(name)) for name, part in config.each().items()}
    if config.sources is None:
        return Latents(caches[""], caches[""].index())
    _check_alike(caches)
    indices = {name: _with_whole_paths(cache) for name, cache in caches.items()}
    return Latents(next(iter(caches.values())), Index.mixed(indices, config.ratios))


def _with_whole_paths(cache: LatentCache) -> Index:
    folder = cache.folder.resolve()
    return Index(tuple(replace(s, file=str(folder / s.file)) for s in cache.index().samples))


def _check_alike(caches: Mapping[str, LatentCache]) -> None:
    (first, one), *others = caches.items()
    for name, other in others:
        for key in _ALIKE:
            if other.settings.get(key) != one.settings.get(key):
                raise DataError(
                    f"data.sources.{first} and data.sources.{name} can't be mixed: {key} is {one.settings.get(key)} in "
                    f"{one.folder} and {other.settings.get(key)} in {other.folder}; encode both alike"
                )
