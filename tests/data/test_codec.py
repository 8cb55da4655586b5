"""Pixels to latents and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from zellige_ray.config import CodecConfig
from zellige_ray.data.codec import make_codec
from zellige_ray.data.dct import DctCodec
from zellige_ray.errors import DataError


def psnr(left: np.ndarray, right: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / ((left.astype(float) - right) ** 2).mean()))


def test_smooth_pictures_and_clips_survive_the_dct(make_clip: Callable[..., np.ndarray]) -> None:
    codec = make_codec(CodecConfig())
    for frames in (1, 5, 13):
        clip = make_clip(frames, 48, 64)
        latents = codec.encode(clip)
        assert latents.shape == (16, 1 + (frames - 1) // 4, 6, 8)
        assert latents.dtype == np.float32
        assert psnr(codec.decode(latents), clip) > 30


def test_the_first_latent_frame_depends_on_the_first_frame_alone(make_clip: Callable[..., np.ndarray]) -> None:
    codec, clip = DctCodec(), make_clip(9)
    assert (codec.encode(clip)[:, :1] == codec.encode(clip[:1])).all()
    assert (codec.decode(codec.encode(clip))[:1] == codec.decode(codec.encode(clip[:1]))).all()


def test_the_basis_is_orthonormal_so_decoding_is_the_inverse_on_what_is_kept() -> None:
    codec = DctCodec()
    rows = codec._basis_Ctyxc.reshape(16, -1)
    assert np.abs(rows @ rows.T - np.eye(16)).max() < 1e-6
    latents = np.random.default_rng(0).normal(size=(16, 3, 4, 6)).astype(np.float32) * 0.1
    latents[15, 0] = 0  # the first frame has no motion
    again = codec.encode(codec.decode(torch.from_numpy(latents)))
    assert np.abs(again - latents).max() < 0.02


def test_sizes_that_do_not_divide_are_a_named_error(make_clip: Callable[..., np.ndarray]) -> None:
    with pytest.raises(DataError, match=r"4n\+1 frames.*got 4 of 64x48"):
        DctCodec().encode(make_clip(4))
    with pytest.raises(DataError, match="multiples of 8"):
        DctCodec().encode(make_clip(1, 20, 64))


def save_wan_vae(folder: Path) -> None:
    from diffusers import AutoencoderKLWan

    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=4, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    vae.save_pretrained(folder)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_tiny_wan_vae_works_as_the_dct_does(tmp_path: Path, make_clip: Callable[..., np.ndarray]) -> None:
    save_wan_vae(tmp_path / "model" / "vae")
    codec = make_codec(CodecConfig(name="vae", path=str(tmp_path / "model")))
    assert (codec.channels, codec.temporal_stride, codec.spatial_stride) == (16, 4, 8)
    clip = make_clip(5, 32, 48)
    latents = codec.encode(clip)
    assert latents.shape == (16, 2, 4, 6)
    assert np.isfinite(latents).all()
    assert (latents == codec.encode(clip)).all()
    assert codec.decode(latents).shape == clip.shape
    assert codec.signature == make_codec(CodecConfig(name="vae", path=str(tmp_path / "model"))).signature

    from diffusers import AutoencoderKLWan

    vae = AutoencoderKLWan.from_pretrained(tmp_path / "model" / "vae")
    x = torch.from_numpy(clip).float().permute(3, 0, 1, 2)[None] / 127.5 - 1
    mean = torch.tensor(vae.config.latents_mean).reshape(-1, 1, 1, 1)
    deviation = torch.tensor(vae.config.latents_std).reshape(-1, 1, 1, 1)
    with torch.no_grad():
        expected = (vae.encode(x).latent_dist.mode()[0] - mean) / deviation
    assert torch.allclose(torch.from_numpy(latents), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_an_image_vae_takes_single_frames(tmp_path: Path, make_clip: Callable[..., np.ndarray]) -> None:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    vae = AutoencoderKL(
        block_out_channels=(8, 8),
        norm_num_groups=4,
        latent_channels=4,
        scaling_factor=0.5,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    vae.save_pretrained(tmp_path)
    codec = make_codec(CodecConfig(name="vae", path=str(tmp_path)))
    assert (codec.channels, codec.temporal_stride, codec.spatial_stride) == (4, 1, 2)
    frame = make_clip(1)
    assert codec.encode(frame).shape == (4, 1, 24, 32)
    assert codec.decode(codec.encode(frame)).shape == frame.shape


def test_a_vae_that_is_not_there_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.codec\.path"):
        make_codec(CodecConfig(name="vae", path=str(tmp_path / "nothing")))
