"""The DCT codec on the mini set: which coefficients hold the energy, and how well pictures and clips survive.

Run: python benchmarks/dct_codec.py [--folder data/mini] [--max-pixels 36864] [--max-frames 121]
Prints the 20 strongest of the 768 coefficients with their root mean square (pictures and clips weigh the same), the
share of the energy that the kept 16 hold, the deviation of every latent channel, and the PSNR of each sample. The
baseline beside it is the picture's block means alone (3 channels: what a codec of one coefficient per colour gives).
Nothing is drawn at random. It takes about 15 s on 2 CPU cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zellige_ray.data import mini
from zellige_ray.data.dct import KEPT, DctCodec, _cosines, _to_ycc
from zellige_ray.data.decoder import Decoder
from zellige_ray.data.sources import list_source
from zellige_ray.models.specs import get_spec


def energies(frames_FHWC: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Mean square of every coefficient (t, y, x, c) of a sample's blocks."""
    ycc = _to_ycc(frames_FHWC)
    groups = np.concatenate([np.repeat(ycc[:1], 4, axis=0), ycc[1:]])
    F, H, W, _ = groups.shape
    blocks = groups.reshape(F // 4, 4, H // 8, 8, W // 8, 8, 3)
    four, eight = _cosines(4), _cosines(8)
    found = np.einsum("ftaybxc,kt,iy,jx->fabkijc", blocks, four, eight, eight, optimize=True)
    return np.asarray((found**2).mean((0, 1, 2)), dtype=np.float64)


def psnr(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> float:
    error = ((left.astype(np.float64) - right) ** 2).mean()
    return float(10 * np.log10(255**2 / error)) if error else float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("data/mini"))
    parser.add_argument("--max-pixels", type=int, default=36864)
    parser.add_argument("--max-frames", type=int, default=121)
    args = parser.parse_args()

    codec, spec = DctCodec(), get_spec("wan")
    by_media: dict[str, list[NDArray[np.float64]]] = {"image": [], "video": []}
    rows: list[tuple[str, str, float, float]] = []
    latents: list[NDArray[np.float32]] = []
    with Decoder() as decoder:
        for item in list_source(mini.fetch(args.folder)).items:
            limit = min(args.max_frames, item.frames or args.max_frames)
            frames = decoder.decode(item.path, item.start, limit, args.max_pixels, spec.size_multiple).frames_FHWC
            frames = frames[: spec.frame_rule(len(frames))]
            media = "image" if len(frames) == 1 else "video"
            encoded = codec.encode(frames)
            flat = encoded * np.array([1, 1, 1, *[0] * 13], dtype=np.float32)[:, None, None, None]
            rows.append((item.id, media, psnr(codec.decode(encoded), frames), psnr(codec.decode(flat), frames)))
            latents.append(encoded.reshape(16, -1))
            by_media[media].append(energies(frames))

    energy = sum(np.mean(group, axis=0) for group in by_media.values()) / 2
    kept = sum(energy[place] for place, _ in KEPT)
    print(f"energy in the kept 16 of 768 coefficients: {kept / energy.sum():.1%}; without the means: "
          f"{(kept - energy[0, 0, 0].sum()) / (energy.sum() - energy[0, 0, 0].sum()):.1%}")  # fmt: skip
    for flat_place in np.argsort(-energy.ravel(), kind="stable")[:20]:
        place = tuple(int(n) for n in np.unravel_index(flat_place, energy.shape))
        mark = "kept" if place in dict(KEPT) else ""
        print(f"  (t, y, x, c) = {place}: {np.sqrt(energy[place]):.3f} {mark}")
    deviations = np.mean([np.sqrt((one**2).mean(axis=1)) for one in latents], axis=0)
    print("root mean square of the latent channels, mean over samples:", " ".join(f"{d:.2f}" for d in deviations))
    for name, media, whole, means in rows:
        print(f"  {name:28} {media}  {whole:5.1f} dB   block means alone {means:5.1f} dB")
    for media in by_media:
        whole, means = np.array([(w, m) for _, kind, w, m in rows if kind == media]).T
        print(f"{media}: PSNR mean {whole.mean():.1f} dB, {whole.min():.1f} to {whole.max():.1f}; "
              f"block means alone {means.mean():.1f} dB")  # fmt: skip


if __name__ == "__main__":
    main()
