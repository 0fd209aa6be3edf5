"""The official SDK through the gateway: what it returns, and what it raises.

    sdk.py URL    the gateway's address with /v1
"""

import asyncio
import sys

import openai

URL = sys.argv[1]
MESSAGES = [{"role": "user", "content": "Say something."}]
EXACT = {"extra_body": {"ignore_eos": True}, "max_tokens": 12, "temperature": 0}


def main() -> None:
    client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=60)

    names = {model.id for model in client.models.list()}
    assert names == {"tiny-llama", "sql-lora", "chat-lora"}, names
    assert client.models.retrieve("sql-lora").id == "sql-lora"

    for model in sorted(names):
        whole = client.chat.completions.create(model=model, messages=MESSAGES, **EXACT)
        assert whole.usage.completion_tokens == 12 and whole.model == model, whole
        stream = client.chat.completions.create(
            model=model,
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
            **EXACT,
        )
        parts = list(stream)
        text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        assert text == whole.choices[0].message.content, (text, whole)
        # Details, such as cached tokens, are in streams only.
        assert counts(parts[-1].usage) == counts(whole.usage), parts[-1]

    completion = client.completions.create(model="tiny-llama", prompt="Once", **EXACT)
    stream = client.completions.create(model="tiny-llama", prompt="Once", stream=True, **EXACT)
    assert "".join(p.choices[0].text for p in stream) == completion.choices[0].text

    kinds = []
    final = None
    for event in client.responses.create(
        model="tiny-llama", input="Hi.", max_output_tokens=12, stream=True
    ):
        kinds.append(event.type)
        final = event
    assert kinds[0] == "response.created", kinds
    assert final.type in ("response.completed", "response.incomplete"), final
    assert final.response.usage.output_tokens > 0, final

    raised = [
        expect(openai.NotFoundError, client, model="nope"),
        expect(openai.BadRequestError, client, model="tiny-llama", max_tokens=-1),
        expect(openai.BadRequestError, client, model="tiny-llama", max_tokens=9999),
    ]

    # Leaves in the middle.
    stream = client.chat.completions.create(
        model="tiny-llama", messages=MESSAGES, stream=True, max_tokens=1500
    )
    next(iter(stream))
    stream.close()

    count = asyncio.run(many())
    print(
        f"openai {openai.__version__}: models, chats with and without adapters, completions, a "
        f"streamed response ({len(kinds)} events), {count} streams at once; raises "
        + ", ".join(raised)
    )


def counts(usage) -> tuple[int, int]:
    return usage.prompt_tokens, usage.completion_tokens


def expect(error: type[Exception], client: openai.OpenAI, **request) -> str:
    try:
        client.chat.completions.create(messages=MESSAGES, **request)
    except error as raised:
        assert raised.body.get("message"), raised.body
        return f"{error.__name__} ({raised.status_code})"
    raise AssertionError(f"no {error.__name__} for {request}")


async def many() -> int:
    connect = {"base_url": URL, "api_key": "none", "max_retries": 0, "timeout": 60}
    async with openai.AsyncOpenAI(**connect) as client:

        async def one(number: int) -> int:
            stream = await client.chat.completions.create(
                model=["tiny-llama", "sql-lora"][number % 2],
                messages=MESSAGES,
                stream=True,
                stream_options={"include_usage": True},
                **EXACT,
            )
            usage = None
            async for part in stream:
                usage = part.usage or usage
            return usage.completion_tokens

        each = await asyncio.gather(*(one(number) for number in range(20)))
    assert each == [12] * 20, each
    return len(each)


main()
