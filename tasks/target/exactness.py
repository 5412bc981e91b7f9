"""What must hold before a prompt is rendered or an answer is read: the template reads the recipe's switches, and leaves
the reasoning as the token format knows it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from schemas.errors import TargetError
from schemas.sections import TargetSpec
from tasks.formats.codec import Codec
from tasks.formats.format import Fault, TokenFormat
from tasks.formats.registry import recognise
from tasks.target.rendering import Renderer
from tasks.target.text import Template, template_variables

_HELLO: Mapping[str, object] = {"messages": [{"role": "user", "content": "Hi"}]}
AUTO = "auto"


def resolved_format(spec: TargetSpec, codec: Codec, template: Template) -> str:
    """The name of the token format: the recipe's, or the one that tokenizer and template belong to."""
    return recognise(codec, template.text) if spec.token_format == AUTO else spec.token_format


def check_switches(template: Template, spec: TargetSpec) -> None:
    """Refuse switches that the template does not read: they would change nothing, in silence.

    Raises:
        TargetError: names them, and those that the template reads.
    """
    read = template_variables(template)
    if unread := sorted(set(spec.template_switches) - read):
        known = f"it reads {', '.join(sorted(read))}" if read else "it reads none"
        raise TargetError(f"target.template_switches: the chat template does not read {', '.join(unread)}; {known}")


def check_opening(token_format: TokenFormat, renderer: Renderer) -> None:
    """Refuse a target whose prompts, as the recipe's switches render them, do not end as its token format says.

    Raises:
        TargetError: names the end of a prompt and the openings that the format knows.
    """
    ids = renderer.ids(_HELLO, room=0)
    if isinstance(ids, Fault):
        raise TargetError(f"a prompt of one word cannot be rendered: {ids.reason}: {ids.detail}")
    known = set(token_format.opens_in_prompt.values())
    found = token_format.opening(np.asarray(ids, dtype=np.int32))
    if found not in known:
        tail = renderer.codec.decode([ids[-8:]])[0]
        raise TargetError(
            f"token format {token_format.name} knows prompts that leave the reasoning {' or '.join(sorted(known))}; "
            f"under target.template_switches a prompt ends with {tail!r}, which leaves it {found}: correct the "
            "switches or target.token_format"
        )
