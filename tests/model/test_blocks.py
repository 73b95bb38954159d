"""Results as the content of messages to language models."""

from __future__ import annotations

import base64

import pytest

from cellblock import CodeExecutionResult, InvalidInputError
from cellblock.model import OutputItem
from cellblock.model.blocks import LARGEST_PICTURE, MOST_PICTURES

PNG, JPEG = b"\x89PNG\r\n\x1a\n one", b"\xff\xd8\xff two"


def result(*bundles: dict[str, str | bytes]) -> CodeExecutionResult:
    items = [OutputItem("display_data", "shown", data=bundle) for bundle in bundles]
    return CodeExecutionResult(text="shown", outputs=items)


def test_the_last_picture_and_the_last_page() -> None:
    shown = result({"image/png": PNG, "text/html": "<p>"}, {"image/png": PNG + b"2"}, {"text/plain": "x"})
    assert (shown.png, shown.html) == (PNG + b"2", "<p>")
    assert (result().png, result().html) == (None, None)


def test_content_for_anthropic() -> None:
    text, picture, other = result({"image/png": PNG, "image/jpeg": JPEG}, {"image/jpeg": JPEG}).to_anthropic()
    assert text == {"type": "text", "text": "shown"}
    encoded = base64.b64encode(PNG).decode()
    assert picture == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}}
    assert other["source"]["media_type"] == "image/jpeg"


def test_content_for_openai() -> None:
    shown, url = result({"image/png": PNG}), f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert shown.to_openai() == [{"type": "input_text", "text": "shown"}, {"type": "input_image", "image_url": url}]
    assert shown.to_openai(api="chat") == [
        {"type": "text", "text": "shown"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    with pytest.raises(InvalidInputError, match="api must be"):
        shown.to_openai(api="completions")  # type: ignore[arg-type]


def test_what_is_too_large_or_too_many_is_told() -> None:
    many: list[dict[str, str | bytes]] = [{"image/png": PNG}] * (MOST_PICTURES + 2)
    text, *pictures = result(*many, {"image/png": PNG + bytes(LARGEST_PICTURE)}).to_anthropic()
    assert len(pictures) == MOST_PICTURES
    assert text["text"] == "shown\n[3 more pictures, too large or too many to be shown]"


def test_the_text_has_its_length() -> None:
    long = CodeExecutionResult(text="x" * 50_000)
    assert len(long.to_anthropic(1000)[0]["text"]) <= 1000
    assert len(long.to_openai(1000)[0]["text"]) <= 1000
