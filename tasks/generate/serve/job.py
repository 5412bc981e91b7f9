"""What a run asks: how each turn becomes a request, and the key under which its answer is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa

from schemas.errors import EngineError
from schemas.generation import GenerationSpec
from schemas.serving import ServingSpec
from tasks.formats.codec import Codec
from tasks.formats.format import TokenFormat
from tasks.generate.asked import Scope, content_key
from tasks.generate.http.client import Client, Endpoint
from tasks.generate.http.dialects import Dialect, Engine, Manner, Prepared, Question, dialect
from tasks.generate.http.facts import Facts
from tasks.generate.http.keys import api_key
from tasks.generate.http.providers import Offer, objection, offers_of, routing
from tasks.generate.prices import Price, price_of_endpoints, price_of_recipe
from tasks.generate.turns import Asked, Turns
from tasks.target.rendering import MarkerFinder, Renderer

_TEMPLATE_MARGIN = 32  # tokens, and a quarter: a server's own template may add to what we rendered
# vLLM on a CPU dies of a seed; others may not take one, and a router would leave out those that do not
_SEEDED = ("sglang",)


@dataclass(frozen=True)
class Means:
    """The target's side: what renders prompts and takes answers apart."""

    renderer: Renderer
    token_format: TokenFormat
    markers: MarkerFinder | None
    template_sha256: str
    revision: str

    @property
    def codec(self) -> Codec:
        """The target's tokenizer."""
        return self.renderer.codec

    def turns(self, table: pa.Table, room: int) -> Turns:
        """The turns of whole conversations."""
        return Turns(table, self.renderer, self.token_format, room, self.markers)


@dataclass(frozen=True)
class Survey:
    """What the servers say of themselves before anything is asked."""

    model: str
    price: Price
    offers: Sequence[Offer] = ()


@dataclass(frozen=True)
class Job:
    """All that every request of a run has in common."""

    engine: Engine
    dialect: Dialect
    manner: Manner
    scope: Scope
    spec: ServingSpec
    endpoints: Sequence[Endpoint]
    survey: Survey
    means: Means
    seed: int
    check: Callable[[], None] = lambda: None
    """Raises ServerEnded if a server that was started for this has ended."""

    @property
    def sends_ids(self) -> bool:
        """Whether the prompt goes out as ids."""
        return self.dialect.path in ("/generate", "/completions")

    def key(self, asked: Asked, max_tokens: int) -> str:
        """Names the answer of a turn."""
        seed = self._seed(asked)
        if self.sends_ids:
            return content_key(self.scope, max_tokens=max_tokens, seed=seed, prompt_ids=asked.prompt.ids)
        messages, tools = asked.request["messages"], asked.request.get("tools")
        return content_key(self.scope, max_tokens=max_tokens, seed=seed, messages=messages, tools=tools)

    def prepare(self, key: str, asked: Asked, max_tokens: int) -> Prepared:
        """The request of a turn."""
        question = Question(asked.request["messages"], asked.request.get("tools"), asked.prompt.ids)
        manner = replace(self.manner, seed=self._seed(asked))
        return self.dialect.prepare(key, question, manner, max_tokens, self.worst_prompt(asked) + max_tokens)

    def worst_prompt(self, asked: Asked) -> int:
        """The most tokens that a prompt can be billed for."""
        count = len(asked.prompt.ids)
        return count if self.sends_ids else count + count // 4 + _TEMPLATE_MARGIN

    def objection(self, facts: Facts, quantization: str | None) -> str | None:
        """Why an answer may not be used."""
        return objection(self.spec.provider, self.survey.model, facts, quantization)

    def _seed(self, asked: Asked) -> int | None:
        """A prompt's own number: equal ones would draw equal tokens where prompts are alike."""
        if self.engine not in _SEEDED:
            return None
        digest = hashlib.sha256(f"{self.seed} {asked.prompt.prompt_id}".encode()).digest()
        return int.from_bytes(digest[:4]) >> 1


def endpoints_of(engine: str, spec: ServingSpec) -> list[Endpoint]:
    """The servers of a recipe, with their keys.

    Raises:
        RecipeError: a key is wanted but not there.
        EngineError: there is no server.
    """
    if not spec.endpoints:
        raise EngineError("no server to ask: give serving.endpoints")
    speaks = dialect(cast(Engine, engine), spec.api)
    return [Endpoint(one.url, speaks.root(one.url), one.weight, api_key(one)) for one in spec.endpoints]


async def look_around(engine: str, endpoints: Sequence[Endpoint], spec: ServingSpec) -> Survey:
    """Ask the servers for the model they serve, and OpenRouter who offers it at what price.

    Raises:
        EngineError: a server does not answer, there is more than one model, or no offer is allowed.
    """
    async with Client(endpoints, spec) as client:
        first = endpoints[0].name
        if engine == "openrouter":
            listed = await client.get(first, f"/models/{spec.model}/endpoints")
            price = price_of_endpoints(listed, lambda *offer: _may_answer(spec, *offer))
            return Survey(spec.model, price, offers_of(listed))
        price = price_of_recipe(spec.price)
        if spec.model:
            return Survey(spec.model, price)
        path = "/v1/models" if engine == "sglang" else "/models"
        served = {one.name: _models(await client.get(one.name, path)) for one in endpoints}
    found = {name for names in served.values() for name in names}
    if len(found) != 1:
        raise EngineError(f"the servers have {len(found)} models, {sorted(found)[:8]}: name one in serving.model")
    return Survey(found.pop(), price)


def job_of(
    generation: GenerationSpec,
    endpoints: Sequence[Endpoint],
    survey: Survey,
    means: Means,
    seed: int,
) -> Job:
    """The job of a recipe."""
    engine, spec = cast(Engine, generation.engine), generation.serving
    speaks = dialect(engine, spec.api)
    manner = Manner(
        survey.model,
        generation.temperature,
        generation.top_p,
        stream=spec.stream,
        template_switches=dict(means.renderer.switches),
        provider=routing(spec.provider, survey.offers) if engine == "openrouter" else {},
        extra_body=spec.extra_body,
    )
    rules = spec.provider.model_dump(exclude={"max_unlisted"}) if engine == "openrouter" else {}
    sampling = {
        "temperature": generation.temperature,
        "top_p": generation.top_p,
        "template_switches": dict(means.renderer.switches),
    }
    scope = Scope(
        survey.model,
        means.revision,
        f"{engine}{speaks.path}",
        sampling,
        rules,
        means.template_sha256,
        spec.extra_body,
    )
    job = Job(engine, speaks, manner, scope, spec, endpoints, survey, means, seed)
    renders = replace(means, renderer=replace(means.renderer, chat=not job.sends_ids))
    return replace(job, means=renders)


def _may_answer(spec: ServingSpec, provider: str, quantization: str) -> bool:
    return objection(spec.provider, "", Facts(provider=provider), quantization) is None


def _models(document: Mapping[str, Any]) -> list[str]:
    return [str(model["id"]) for model in document.get("data", []) if isinstance(model, Mapping) and "id" in model]
