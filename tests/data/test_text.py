"""Captions to embeddings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from zellige_ray.config import TextConfig
from zellige_ray.data.text import NgramEncoder, make_encoder
from zellige_ray.errors import DataError


def test_length_follows_the_words_and_an_empty_caption_has_none() -> None:
    encoder = make_encoder(TextConfig(dim=48))
    assert encoder.encode("").shape == (0, 48)
    assert encoder.encode("  \n").shape == (0, 48)
    assert encoder.encode("Cat").shape == (1, 48)
    assert encoder.encode("A cat, asleep.").shape == (5, 48)
    assert encoder.encode("猫が寝る").shape == (4, 48)
    assert encoder.encode("a cat").dtype == np.float32


def test_long_captions_are_cut_and_still_counted() -> None:
    encoder = NgramEncoder(16, max_tokens=10)
    assert encoder.encode("word " * 300).shape == (10, 16)
    assert encoder.count("word " * 300) == 300


def test_rows_have_unit_mean_square_for_any_width() -> None:
    for dim in (1, 64, 513, 4096):
        text = NgramEncoder(dim, 9).encode("two words")
        assert text.shape == (2, dim)
        assert np.allclose((text**2).mean(axis=1), 1, atol=1e-4)


def test_related_words_are_near_and_order_matters() -> None:
    encoder = NgramEncoder(512, 9)

    def likeness(left: str, right: str) -> float:
        return float(encoder.encode(left)[0] @ encoder.encode(right)[0]) / 512

    assert likeness("motorcycle", "motorcycles") > 0.4
    assert abs(likeness("motorcycle", "grass")) < 0.2
    assert likeness("Motorcycle", "motorcycle") == pytest.approx(1, abs=1e-5)
    assert not np.allclose(encoder.encode("dog bites man")[2], encoder.encode("man bites dog")[0])


def test_embeddings_are_the_same_in_every_process() -> None:
    code = (
        "import zellige_ray.data.text as t, hashlib;"
        "print(hashlib.sha256(t.NgramEncoder(64, 99).encode('A red cup, on a table.').round(4).tobytes()).hexdigest())"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "PATH": ""},
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(found) == 1


def test_a_missing_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DataError, match=r"zellige-ray\[text\]"):
        make_encoder(TextConfig(name="transformers", path="x"))


@pytest.mark.filterwarnings("ignore")
def test_a_tiny_t5_from_a_folder_encodes_captions_of_any_length(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the optional extra `text` is not installed")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "</s>", "<unk>", "a", "red", "cup"]
    tokens = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    config = transformers.T5Config(vocab_size=6, d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    transformers.T5EncoderModel(config).save_pretrained(tmp_path)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokens, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(tmp_path)
    encoder = make_encoder(TextConfig(name="transformers", path=str(tmp_path), max_tokens=4))
    assert encoder.dim == 32
    assert encoder.encode("a red").shape == (3, 32)
    assert encoder.encode("a red cup a red cup").shape == (4, 32)
    assert encoder.count("a red cup a red cup") == 7
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"cannot load a text encoder"):
        make_encoder(TextConfig(name="transformers", path=str(tmp_path)))
