"""Model resolution: from the name of a model to a model, or to the best one available on this machine.

The provider is taken from the argument, else from `MODEL_PROVIDER`, else from the model's name. Without a
name the first of these is used: a provider whose key is set, an Ollama on this machine, the `local` extra.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from kestrel_lab.core.errors import ModelError, UsageError, did_you_mean
from kestrel_lab.core.protocols import Model
from kestrel_lab.models import local
from kestrel_lab.models.fallback import model_of_several, names_several
from kestrel_lab.models.litellm.library import load_in_background
from kestrel_lab.models.litellm.model import LiteLLMModel, litellm_providers
from kestrel_lab.models.prompted_tools import TextToolModel
from kestrel_lab.models.providers import FURTHER, PROVIDERS, Ollama, owner_of, provider_of
from kestrel_lab.models.retry import with_retries
from kestrel_lab.models.router import ROUTE, read_routes
from kestrel_lab.models.web_grounding import WEB, with_web_search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.protocols import ModelKind, OnDelta


NONE: Final = "none"


@dataclass(frozen=True, slots=True)
class NoModel:
    """The model `none`, for plans without model calls: a call raises `ModelError`."""

    name: ClassVar[str] = NONE
    # Nothing is scripted or replayed.
    kind: ClassVar[ModelKind] = "real"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Raise `ModelError`."""
        raise ModelError(
            "this step needs a model, and the run has none: name one (kestrel models lists them)"
        )


_OLLAMA = ("ollama", "ollama_chat")
_NOTHING = (
    "no model can be used yet. Do one of these: set a key, e.g. export OPENAI_API_KEY=… "
    "(or ANTHROPIC_API_KEY, GEMINI_API_KEY, …); start Ollama and pull a model; "
    f"{local.INSTALL} for a small model that needs no key; or name a model (--model provider/name)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    """A model and whether it can be used."""

    name: str
    available: bool
    note: str
    """Why it is available, or how to make it so."""


def available_models(env: Mapping[str, str]) -> list[ModelChoice]:
    """Return the models usable on this machine, and what others lack, in order of preference.

    The first available one is the choice of `choose_model(None, env=env)`. Looks for an Ollama for at most
    0.2 seconds.
    """
    return list(_choices(env))


def chosen_because(env: Mapping[str, str]) -> str:
    """Return why the model is available that is chosen where none is named; empty without one."""
    return next((choice.note for choice in _choices(env) if choice.available), "")


def choose_model(
    spec: str | Model | None,
    *,
    env: Mapping[str, str],
    provider: str | None = None,
    api_base: str | None = None,
    factories: Mapping[str, Callable[[str], Model]] | None = None,
) -> Model:
    """Return the model for `spec`, with retries, and with prompted tool calling where it has no tool calling.

    `spec` is a model (returned as it is), a name, or `None` for the best one available. `factories` make
    models for names such as `scripted:PATH`, keyed by the part before the colon. `api_base` is the address
    of an own server that speaks the OpenAI protocol. `"a > b"` names several, each called when the one before
    it fails or gives an unusable answer: see `EscalatingModel`; `"route:FILE"` one for each kind of work: see
    `read_routes`; `"provider/name+web"` one that searches the web itself; `"none"` is no model.
    Raises `UsageError` that says what to do where no such model can be used.
    """
    if isinstance(spec, Model):
        return spec

    def again(name: str) -> Model:
        return choose_model(name, env=env, provider=provider, api_base=api_base, factories=factories)

    if spec is not None and names_several(spec):
        return model_of_several(spec, again)
    word, _, rest = (spec or "").partition(":")
    if word in (makers := {ROUTE: lambda path: read_routes(path, again), **(factories or {})}):
        # Also for the bare word: the factory says what has to follow it.
        return makers[word](rest)
    provider = provider or env.get("MODEL_PROVIDER") or None
    if spec is not None and (spec == NONE or spec.endswith(WEB)):
        return (
            NoModel() if spec == NONE else _searching_model(spec.removesuffix(WEB), provider, api_base, env)
        )
    if _is_local(spec or "", provider):
        return _local()
    if not spec and not provider and not api_base:
        best = next((choice for choice in _choices(env) if choice.available), None)
        if best is None:
            raise UsageError(_NOTHING)
        return choose_model(best.name, env=env)
    prefix, name = _resolve_name(spec or "", provider, api_base, env, known=[*(factories or ())])
    if prefix in _OLLAMA:
        return _ollama(name, Ollama(address=api_base.rstrip("/")) if api_base else Ollama.of(env))
    return with_retries(_litellm_model(prefix, name, api_base, env))


def prepare_in_background(env: Mapping[str, str], model: str | None = None) -> bool:
    """Begin to load what hosted models need, while a person still types; returns whether that was begun.

    Nothing is loaded where `model`, or without one `env`, names no provider with a key in `env`, and nothing
    twice.
    """
    prefix = (model or "").partition("/")[0]
    wanted = any(provider.key(env) for provider in PROVIDERS if prefix in ("", provider.prefix))
    return (wanted or bool(not model and env.get("MODEL_PROVIDER"))) and load_in_background()


def _choices(env: Mapping[str, str]) -> Iterator[ModelChoice]:
    for provider in PROVIDERS:
        if not provider.model:
            continue
        found = next((key for key in provider.keys if env.get(key)), None)
        note = f"{found} is set" if found else f"set {provider.keys[0]}"
        yield ModelChoice(name=provider.default, available=found is not None, note=note)
    ollama = Ollama.of(env)
    if models := ollama.models():
        yield ModelChoice(
            name=f"ollama/{models[0]}", available=True, note=f"Ollama answers at {ollama.address}"
        )
    else:
        note = (
            f"start Ollama (nothing usable answers at {ollama.address}) and pull a model, e.g. ollama "
            "pull qwen3"
        )
        yield ModelChoice(name="ollama/…", available=False, note=note)
    missing = local.local_extra_missing()
    note = local.INSTALL if missing else "installed; a small model, no key needed"
    yield ModelChoice(name=local.NAME, available=not missing, note=note)


def _resolve_name(
    spec: str, provider: str | None, api_base: str | None, env: Mapping[str, str], known: list[str]
) -> tuple[str, str]:
    prefix, slash, name = spec.partition("/")
    if provider:
        _check_provider(provider, spec)
        if not spec:
            return provider, _default_of(provider, env)
        if slash and prefix == provider:
            return provider, name or _default_of(provider, env)
        _refuse_other_provider(provider, spec, api_base)
        return provider, spec
    if slash and (_is_listed(prefix) or not api_base):
        _check_provider(prefix, spec)
        _refuse_other_provider(
            prefix, name, api_base or env.get("OPENAI_BASE_URL") or env.get("OPENAI_API_BASE")
        )
        return prefix, name or _default_of(prefix, env)
    if not spec:
        raise UsageError("an address of a server was given, but no model: name one that it serves")
    if api_base:
        return "openai", spec
    if owner := owner_of(spec):
        return owner.prefix, spec
    hint = did_you_mean(spec, ["local", *known, *(choice.default for choice in PROVIDERS if choice.model)])
    msg = (
        f"no provider is known for the model {spec!r}: write provider/name, e.g. openai/{spec}, or set "
        f"MODEL_PROVIDER ({hint})"
    )
    raise UsageError(msg)


def _refuse_other_provider(provider: str, model: str, address: str | None) -> None:
    """Raise `UsageError` for a model that names another provider than the one that was chosen. A gateway, and
    a server of one's own, may call its models so.
    """
    prefix, slash, _ = model.partition("/")
    chosen = provider_of(provider)
    if slash and chosen and not chosen.gateway and not address and _is_listed(prefix):
        raise UsageError(
            f"the provider is {provider!r} (named beside the model, or by MODEL_PROVIDER), "
            f"but the model {model!r} names {prefix!r}: leave one of them out"
        )


def _is_listed(prefix: str) -> bool:
    return prefix in _OLLAMA or provider_of(prefix) is not None


def _check_provider(prefix: str, spec: str) -> None:
    # The full list costs the import of litellm, so it is consulted only for names that are not in the short
    # one.
    if _is_listed(prefix) or prefix in FURTHER or prefix in (everyone := litellm_providers()):
        return
    msg = (
        f"unknown model provider {prefix!r}"
        + (f" in {spec!r}" if spec else "")
        + f": {did_you_mean(prefix, _options(prefix, everyone))}"
    )
    raise UsageError(msg)


def _options(prefix: str, everyone: frozenset[str]) -> list[str]:
    """Return the providers to suggest: those with a similar name, else the usual ones."""
    usual = [*(provider.prefix for provider in PROVIDERS), "ollama", "local"]
    alike = [
        options
        for options in (usual, [*everyone])
        if did_you_mean(prefix, options).startswith("did you mean")
    ]
    return alike[0] if alike else usual


def _default_of(prefix: str, env: Mapping[str, str]) -> str:
    if prefix in _OLLAMA:
        ollama = Ollama.of(env)
        if models := ollama.models():
            return models[0]
        msg = (
            f"no Ollama server with a model answers at {ollama.address}: start it (ollama serve) and "
            "pull a model (ollama pull qwen3)"
        )
        raise UsageError(msg)
    provider = provider_of(prefix)
    if provider is None or not provider.model:
        raise UsageError(f"no default model is known for the provider {prefix!r}: name one")
    return provider.model


def _is_local(spec: str, provider: str | None) -> bool:
    if spec in {"local", local.NAME}:
        return True
    if provider != "local" and not spec.startswith("local/"):
        return False
    if spec in {"", local.NAME.partition("/")[2]}:
        return True
    msg = (
        f"there is no local model {spec!r}: the only one is {local.NAME} (for others: ollama/NAME, or "
        "your own server with its address)"
    )
    raise UsageError(msg)


def _local() -> Model:
    if missing := local.local_extra_missing():
        raise UsageError(f"the local model needs {' and '.join(missing)}: {local.INSTALL}")
    return TextToolModel(local.LocalModel(), brief=True, max_result_chars=600)


def _ollama(name: str, ollama: Ollama) -> Model:
    tools = ollama.calls_tools(name)
    model = with_retries(LiteLLMModel(f"ollama_chat/{name}", api_base=ollama.address))
    return model if tools else TextToolModel(model)


def _searching_model(spec: str, provider: str | None, api_base: str | None, env: Mapping[str, str]) -> Model:
    if _is_local(spec, provider) or spec in {"", NONE}:
        raise UsageError(f"{spec + WEB!r}: name a hosted model that searches the web, provider/name{WEB}")
    prefix, name = _resolve_name(spec, provider, api_base, env, known=[])
    if prefix in _OLLAMA:
        raise UsageError(f"{spec + WEB!r}: models of Ollama have no web search of their own; leave {WEB} out")
    return with_retries(with_web_search(_litellm_model(prefix, name, api_base, env)))


def _litellm_model(prefix: str, name: str, api_base: str | None, env: Mapping[str, str]) -> LiteLLMModel:
    if prefix == "openai":
        api_base = api_base or env.get("OPENAI_BASE_URL") or env.get("OPENAI_API_BASE") or None
    provider = provider_of(prefix)
    key = provider.key(env) if provider else None
    if provider and key is None and api_base is None:
        raise UsageError(
            f"the model {prefix}/{name} needs a key: set {provider.keys[0]}, or choose another model "
            "(kestrel models)"
        )
    return LiteLLMModel(f"{prefix}/{name}", api_base=api_base, api_key=key)
