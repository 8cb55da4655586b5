"""Families: every model with no zero weights, and the velocity of one sequence from its own plain forward."""

from __future__ import annotations

import torch

from zellige_ray.config import ModelConfig
from zellige_ray.models import get_adapter, get_spec
from zellige_ray.models.adapter import with_empty_captions
from zellige_ray.models.cogvideox import rotation

HEADS, HEAD_DIM = 3, 16
VIDEO = [(1, 1, 1), (1, 1, 3), (1, 1, 17), (2, 3, 5), (1, 4, 7), (3, 2, 3)]
PICTURE = [(1, 1, 1), (1, 1, 3), (1, 1, 17), (1, 6, 5), (1, 4, 7), (1, 3, 3)]
TEXT = [5, 2, 1, 11, 4, 3]
# ten of diffusers' families; Wan, the eleventh, and the reference DiT have tests of their own beside
FAMILIES = ["flux", "flux2", "qwen", "ltx", "hunyuan", "sd3", "cogvideox", "pixart", "sana", "label_dit"]
MODELS = [*FAMILIES, "wan", "dit"]


def random_batch(name, lab, dtype, seed):
    """Sequences of a family's shapes, and their attention lengths."""
    spec = get_spec(name)
    shapes = PICTURE if spec.max_frames == 1 else VIDEO
    text = [n if spec.joint else n * (i != 2) for i, n in enumerate(TEXT)]
    batch = lab.make_batch(spec, shapes, text, dtype, seed)
    return batch, [b.grad.shape[0] + (b.text.shape[0] if spec.joint else 0) for b in batch]


def fresh(name, lab, dtype, checkpointing="none", layers=2):
    """A module with no zero weights, so that every gradient means something."""
    ratio = {"flux2": 3.0, "sana": 2.5, "hunyuan": 2.0}.get(name, 4.0)
    config = ModelConfig(
        name=name, layers=layers, heads=HEADS, head_dim=HEAD_DIM, mlp_ratio=ratio, checkpointing=checkpointing
    )
    return built(config, lab, dtype)


def built(config, lab, dtype):
    """The module of a configuration, every weight moved off zero."""
    module = get_adapter(config.name).build(config, lab.TEXT_DIM, 0, torch.float64, "cpu")
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=g, dtype=torch.float64) * (0.1 if p.ndim > 1 else 0.02))
    return torch.nn.Module.to(module, dtype)


def plain(name, module, b):
    """The velocity of one sequence from diffusers' own forward, as patches; `b.time` in [0, 1]."""
    adapter, spec = get_adapter(name), get_spec(name)
    n, (f, h, w) = b.grad.shape[0], spec.grid(b.shape)
    patches, places = adapter.tokens(b.latents, 0, n), adapter.positions(b.shape, 0, n)
    time, text = b.time[None], b.text[None]
    if name in ("ltx", "pixart", "sana", "wan", "dit"):
        text = with_empty_captions(b.text, (b.text.shape[0],))[0][None]
    if name == "dit":
        return module(patches.flatten(1), places, b.time[None], text[0]).view_as(patches)
    if name == "wan":
        return adapter.tokens(module(b.latents[None], time * 1000, text, return_dict=False)[0][0], 0, n)
    if name == "flux":
        ids = torch.zeros(text.shape[1], 3)
        out = module(patches.flatten(1)[None], text, b.pooled[None], time, places.double(), ids, return_dict=False)[0]
    elif name == "flux2":
        ids = torch.cat((torch.zeros(text.shape[1], 3, dtype=torch.int64), torch.arange(text.shape[1])[:, None]), 1)
        out = module(
            patches.flatten(1)[None], text, time, torch.nn.functional.pad(places, (0, 1)), ids, return_dict=False
        )[0]
    elif name == "qwen":
        out = module(patches.flatten(1)[None], text, None, time, [(f, h, w)], return_dict=False)[0]
    elif name == "ltx":
        coords = (places * torch.tensor([8, 32, 32])).to(b.latents.dtype).T[None]
        out = module(patches.flatten(1)[None], text, time * 1000, None, video_coords=coords, return_dict=False)[0]
    elif name == "hunyuan":
        mask = torch.ones(1, text.shape[1], dtype=torch.int64)
        out = module(b.latents[None], time * 1000, text, mask, b.pooled[None], return_dict=False)[0]
        return adapter.tokens(out[0], 0, n)
    elif name == "cogvideox":
        rotary = rotation(places, HEAD_DIM)
        out = module(b.latents.transpose(0, 1)[None], text, time * 1000, image_rotary_emb=rotary, return_dict=False)[0]
        return adapter.tokens(out[0].transpose(0, 1), 0, n)
    else:
        options = {
            "sd3": {"encoder_hidden_states": text, "pooled_projections": b.pooled[None]},
            "pixart": {"encoder_hidden_states": text, "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}},
            "sana": {"encoder_hidden_states": text},
            "label_dit": {"class_labels": torch.tensor([b.label])},
        }[name]
        if name == "label_dit":  # its own forward wants a square picture: the same blocks on one sequence
            return square(module, b, time * 1000)
        out = module(b.latents[:, 0][None], timestep=time * 1000, return_dict=False, **options)[0]
        return adapter.tokens(out[0][:, None], 0, n)
    return out[0].view_as(patches)


def square(module, b, time):
    label = torch.tensor([b.label])
    for block in module.transformer_blocks:
        block.norm1.emb.class_embedder.dropout_prob = 0.0
    side = int(b.grad.shape[0] ** 0.5)
    if (side, side) == tuple(n // 2 for n in b.shape[2:]):
        out = module(b.latents[:, 0][None], timestep=time, class_labels=label, return_dict=False)[0]
        return get_adapter("label_dit").tokens(out[0][:, None], 0, b.grad.shape[0])
    hidden = module.pos_embed(b.latents[:, 0][None])
    for block in module.transformer_blocks:
        hidden = block(hidden, timestep=time, class_labels=label)
    rows = module.transformer_blocks[0].norm1.emb(time, label, hidden_dtype=hidden.dtype)
    shift, scale = module.proj_out_1(torch.nn.functional.silu(rows)).chunk(2, dim=1)
    out = module.proj_out_2(module.norm_out(hidden) * (1 + scale[:, None]) + shift[:, None])
    return out[0].reshape(-1, 2, 2, b.shape[0]).permute(0, 3, 1, 2).unsqueeze(2)
