"""Declarations are checked whole before anything runs of them, and outlive the runs (RR-45)."""

import pytest

from quiesce import InvalidInput, NotFound, agent, tool
from quiesce.runtime.registry import Agent, Registry, Tool


async def act(value: int) -> int:
    return value


def block(value: int) -> int:
    return value


@pytest.mark.req("RR-45")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"effect": "sometimes"}, "effect"),
        ({"effect": "probe"}, "probe"),
        ({"effect": "once", "probe": act}, "probe"),
        ({"isolation": "process"}, "isolation"),
        ({"cost": {"tool_calls": -1}}, "cost"),
    ],
)
def test_a_declaration_that_does_not_fit_together_names_the_field(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        tool(**options)(act)  # type: ignore[arg-type]


def test_a_plain_function_runs_in_a_thread_and_an_async_one_in_a_task() -> None:
    assert tool()(block).isolation == "thread"
    assert tool()(act).isolation == "task"
    with pytest.raises(InvalidInput, match="isolation"):
        tool(isolation="task")(block)


@pytest.mark.req("RR-45")
def test_what_was_refused_is_not_registered_and_two_codes_have_not_one_name() -> None:
    registry = Registry()
    with pytest.raises(InvalidInput, match="async"):
        agent(block)
    with pytest.raises(NotFound, match="none"):
        registry.get("block")
    known = registry.add(agent(act))
    assert registry.add(known) is known

    async def other(value: int) -> int:
        return value + 1

    with pytest.raises(InvalidInput, match="registered already"):
        registry.add(agent(name="act")(other))
    assert registry.names == ("act",)


def test_a_model_is_shown_the_arguments_of_a_tool_and_not_its_call() -> None:
    @tool(effect="pure")
    async def look_up(topic: str, depth: int = 1, *, call: object) -> str:
        return f"{topic} {depth} {call}"

    schema = look_up.parameters()
    assert schema["properties"] == {"topic": {"type": "string"}, "depth": {"type": "integer", "default": 1}}
    assert schema["required"] == ["topic"]
    assert look_up.takes_call


@pytest.mark.req("TR-45")
def test_a_tool_is_known_where_an_agent_s_code_can_see_it() -> None:
    inner = tool()(act)

    async def uses(run: object) -> object:
        return inner, run

    def made_of(*tools: Tool) -> Agent:
        async def many(run: object) -> object:
            return tools, run

        return agent(many)

    def anew() -> Tool:
        return tool()(act)

    registry = Registry([agent(uses), made_of(inner, tool()(block))])
    assert registry.tool_of("uses", "act") is inner
    assert registry.tool_of("many", "act") is inner
    assert registry.tool_of("uses", "block") is None
    assert registry.tool_of("nobody", "act") is None
    assert Registry([made_of(anew(), anew())]).tool_of("many", "act") is None, "of two nobody can say which"
    assert Registry([agent(stands_alone)]).tool_of("stands_alone", "note") is NOTE


async def note(text: str) -> str:
    return text


NOTE = tool()(note)


async def stands_alone(run: object) -> object:
    return run
