"""The official OpenAI SDK against a gateway. Reads names of scenarios, one a line, and says `ok`
to each that went well; the first that does not ends it with a traceback.

Usage: sdk.py BASE_URL
"""

import asyncio
import sys
import time

import openai

BASE = sys.argv[1]
MESSAGES = [{"role": "user", "content": "Say something."}]


def client(**options):
    return openai.OpenAI(base_url=f"{BASE}/v1", api_key="sk-test", **options)


def answers():
    sdk = client(max_retries=0)

    chat = sdk.chat.completions.create(model="base", messages=MESSAGES, max_tokens=3)
    assert chat.choices[0].message.content.split() == ["w0001", "w0002", "w0003"], chat
    assert chat.usage.completion_tokens == 3 and chat.choices[0].finish_reason == "length"
    assert len(chat._request_id) == 32, chat._request_id

    stream = sdk.chat.completions.create(
        model="base",
        messages=MESSAGES,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.split() == [f"w{index:04}" for index in range(1, 21)], text
    assert chunks[-1].usage.completion_tokens == 20 and chunks[-1].choices == []

    done = sdk.completions.create(model="base", prompt=[1, 2, 3], max_tokens=2)
    assert done.choices[0].text.split() == ["w0001", "w0002"] and done.usage.prompt_tokens == 3
    pieces = sdk.completions.create(model="base", prompt="Once", max_tokens=4, stream=True)
    text = "".join(choice.text for piece in pieces for choice in piece.choices)
    assert text.split()[-1] == "w0004", text

    vectors = sdk.embeddings.create(model="base", input="one")
    assert len(vectors.data) == 1 and len(vectors.data[0].embedding) > 0, vectors

    assert [model.id for model in sdk.models.list()] == ["base", "org/alias"]
    assert sdk.models.retrieve("org/alias").id == "org/alias"
    alias = sdk.chat.completions.create(model="base", messages=MESSAGES, max_tokens=1)
    assert alias.model == "base"

    raw = sdk.chat.completions.with_raw_response.create(
        model="base", messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-Id": "mine"}
    )
    assert raw.headers["x-request-id"] == "mine" and raw.parse().id == "chatcmpl-mine"


def at_once():
    async def one(sdk, tokens):
        stream = await sdk.chat.completions.create(
            model="base", messages=MESSAGES, max_tokens=tokens, stream=True
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert len(text.split()) == tokens, (tokens, text)

    async def all_of_them():
        options = {"base_url": f"{BASE}/v1", "api_key": "sk-test", "max_retries": 0}
        async with openai.AsyncOpenAI(**options) as sdk:
            await asyncio.gather(*(one(sdk, 1 + index % 20) for index in range(60)))

    asyncio.run(all_of_them())


def errors():
    sdk = client(max_retries=0)

    def raises(kind, call, **wanted):
        try:
            call()
        except kind as error:
            assert type(error) is kind, error
            for name, value in wanted.items():
                assert getattr(error, name) == value, (name, getattr(error, name), value)
            assert error.request_id, error
            return error
        raise AssertionError(f"no {kind.__name__}")

    def chat(**fields):
        return lambda: sdk.chat.completions.create(messages=MESSAGES, **fields)

    for stream in [False, True]:
        unknown = raises(
            openai.NotFoundError,
            chat(model="nope", stream=stream),
            status_code=404,
            code="model_not_found",
            param="model",
            type="invalid_request_error",
        )
        assert "`nope`" in unknown.message, unknown.message
    raises(openai.BadRequestError, chat(model=None), code="invalid_model", param="model")
    raises(openai.NotFoundError, lambda: sdk.models.retrieve("nope"), code="model_not_found")
    raises(openai.NotFoundError, lambda: sdk.files.list(), code="unknown_url")
    # The engine's own words come through.
    long = raises(openai.BadRequestError, chat(model="base", max_tokens=100_000_000))
    assert "100000000" in long.message, long.message


def retried():
    began = time.monotonic()
    sdk = client(max_retries=2)
    chat = sdk.chat.completions.create(model="base", messages=MESSAGES, max_tokens=1)
    assert chat.choices[0].message.content.split() == ["w0001"]
    # It waited for as long as it was told; its own first pause is half a second at most.
    assert time.monotonic() - began >= 0.9


def saturated():
    try:
        client(max_retries=0).chat.completions.create(model="base", messages=MESSAGES, max_tokens=1)
    except openai.RateLimitError as error:
        assert (error.status_code, error.code) == (429, "pool_saturated"), error
        assert error.response.headers["retry-after-ms"] == "1000"
        return
    raise AssertionError("no RateLimitError")


ALL = [answers, at_once, errors, retried, saturated]
SCENARIOS = {function.__name__: function for function in ALL}
for line in sys.stdin:
    SCENARIOS[line.strip()]()
    print("ok", flush=True)
