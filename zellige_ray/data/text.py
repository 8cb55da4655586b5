"""The text encoders: how captions become embeddings, by name.

Shape suffixes: L caption tokens, D embedding width.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zellige_ray.config import TextConfig
from zellige_ray.errors import DataError

Embeddings = NDArray[np.float32]

# A word, a single character of a script without spaces, or a punctuation mark.
_TOKENS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|[^\w\s]")
_DIGEST_WORDS = 16


class TextEncoder(Protocol):
    """Captions in, one row per token out; no padding. `signature` says all that its embeddings depend on."""

    signature: str
    dim: int
    max_tokens: int

    def count(self, caption: str) -> int:
        """Tokens of the caption before any cut."""

    def encode(self, caption: str) -> Embeddings:
        """`text_LD` in float32, at most `max_tokens` rows; `[0, D]` for an empty caption."""


class NgramEncoder:
    """Each word is a sum of hashed random signs: of itself, its letter 3- and 4-grams, the pair with its predecessor.

    Words that share letters are near each other, order is seen through pairs, and nothing is learned or loaded. Rows
    have unit mean square. The hash is blake2: the same on every machine.
    """

    def __init__(self, dim: int, max_tokens: int) -> None:
        self.signature = f"ngram-{dim}-{max_tokens}/1"
        self.dim = dim
        self.max_tokens = max_tokens
        self._word = lru_cache(maxsize=4096)(self._word_vector)

    def count(self, caption: str) -> int:
        """Tokens of the caption before any cut."""
        return len(_split(caption))

    def encode(self, caption: str) -> Embeddings:
        """`text_LD` of the caption's words and marks."""
        words = _split(caption)[: self.max_tokens]
        text_LD = np.zeros((len(words), self.dim), dtype=np.float32)
        for row, word in enumerate(words):
            pair = f"{words[row - 1]} {word}" if row else f"^ {word}"
            vector_D = self._word(word) + self._signs(pair)
            text_LD[row] = vector_D * np.sqrt(self.dim / max(float(vector_D @ vector_D), 1e-9))
        return text_LD

    def _word_vector(self, word: str) -> Embeddings:
        marked = f"<{word}>"
        grams = [marked[i : i + n] for n in (3, 4) for i in range(len(marked) - n + 1)]
        total = self._signs(marked)
        for gram in grams:
            total = total + 2 * self._signs(gram) / np.sqrt(len(grams))
        return np.asarray(total, dtype=np.float32)

    def _signs(self, feature: str) -> Embeddings:
        bits: list[NDArray[np.uint8]] = []
        for block in range(-(-self.dim // (32 * _DIGEST_WORDS))):
            digest = hashlib.blake2b(f"{block}\x1f{feature}".encode(), digest_size=4 * _DIGEST_WORDS).digest()
            bits.append(np.unpackbits(np.frombuffer(digest, dtype=np.uint8)))
        return np.concatenate(bits)[: self.dim].astype(np.float32) * 2 - 1


class TransformersEncoder:
    """The last hidden states of a transformers encoder, without padding; an encoder-decoder gives its encoder."""

    def __init__(self, path: str, max_tokens: int) -> None:
        """Raises DataError when transformers is missing, or can't load the encoder."""
        try:
            import transformers
        except ImportError as fault:
            raise DataError(
                "data.text.name `transformers` needs the package: pip install 'zellige-ray[text]', "
                "or set data.text.name: ngram"
            ) from fault
        from zellige_ray.models.fingerprint import weights_hash

        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path)
            known = type(transformers.AutoConfig.from_pretrained(path)) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
            loader: Any = transformers.AutoModelForTextEncoding if known else transformers.AutoModel
            model, told = loader.from_pretrained(path, output_loading_info=True)
        except (OSError, ValueError, KeyError, ImportError) as fault:
            raise DataError(f"cannot load a text encoder from data.text.path {path!r}: {fault}") from fault
        missing = sorted(name for name in told["missing_keys"] if "pooler" not in name)
        if missing:
            raise DataError(
                f"data.text.path {path!r} lacks {len(missing)} weights of its text encoder, e.g. {missing[0]}"
            )
        if hasattr(model, "encoder") and hasattr(model, "decoder"):
            model = model.get_encoder()
        self._model = getattr(model, "text_model", model).eval().requires_grad_(False)
        config = getattr(model.config, "text_config", model.config)
        self.dim = int(getattr(config, "hidden_size", None) or config.d_model)
        self.max_tokens = max_tokens
        self.signature = f"transformers-{Path(path).name}-{weights_hash(self._model)}-{self.dim}-{max_tokens}/1"

    def count(self, caption: str) -> int:
        """Tokens of the caption before any cut, the tokenizer's own marks included."""
        return len(self._tokenizer(caption)["input_ids"])

    def encode(self, caption: str) -> Embeddings:
        """`text_LD` of the caption, cut to `max_tokens` by the tokenizer."""
        import torch

        tokens = self._tokenizer(caption, truncation=True, max_length=self.max_tokens, return_tensors="pt")
        if tokens["input_ids"].shape[1] == 0:
            return np.zeros((0, self.dim), dtype=np.float32)
        with torch.inference_mode():
            states = self._model(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).last_hidden_state
        return np.asarray(states[0].float().numpy(), dtype=np.float32)


def _split(caption: str) -> list[str]:
    return _TOKENS.findall(unicodedata.normalize("NFKC", caption).casefold())


def _ngram(config: TextConfig) -> TextEncoder:
    return NgramEncoder(config.dim, config.max_tokens)


def _transformers(config: TextConfig) -> TextEncoder:
    assert config.path is not None  # TextConfig sees to it
    return TransformersEncoder(config.path, config.max_tokens)


encoders: dict[str, Callable[[TextConfig], TextEncoder]] = {"ngram": _ngram, "transformers": _transformers}


def make_encoder(config: TextConfig) -> TextEncoder:
    """The configured text encoder. Raises DataError for one that can't be loaded."""
    return encoders[config.name](config)
