"""Who may say what when, on both sides, with every delay that a wire can have."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cellblock.errors import ProtocolError
from cellblock.wire import messages as m
from cellblock.wire.fields import MAX_CODE
from cellblock.wire.message_codec import encode
from cellblock.wire.protocol import TRANSITIONS, Conversation, Side, State
from wire_cases import BY_TYPE, TYPES, brief, cut, frame, hostile, messages, places, unhurried

OTHER = {Side.HOST: Side.WORKER, Side.WORKER: Side.HOST}

EXAMPLES: dict[str, m.Message] = {
    "execute": m.Execute("1"),
    "input_reply": m.InputReply(1, "x"),
    "installed": m.Installed(1, 0),
    "decided": m.Decided(1),
    "ended": m.Ended(1, 0),
    "changes": m.Changes(),
    "complete": m.Complete("a", 1),
    "inspect": m.Inspect("a", 1),
    "park": m.Park(1),
    "idle": m.Idle(),
    "continue": m.Continue(),
    "shutdown": m.Shutdown(),
    "ready": m.Ready(1),
    "stream": m.Stream("stdout", b"x"),
    "part": m.Part("text/html", b"x"),
    "display": m.Display("display_data", {}),
    "clear": m.Clear(False),
    "comm": m.Comm("comm_msg", b"{}"),
    "input": m.InputRequest(1, "?", False),
    "install": m.Install(1, ("x",)),
    "command": m.Command(1, "shell", "ls"),
    "reply": m.Reply(1),
    "changed": m.Changed(("a",), ("int",), ("b",)),
    "completed": m.Completed((), 0, 0),
    "inspected": m.Inspected(None),
    "parked": m.Parked(),
    "idling": m.Idling(False),
}


def in_state(side: Side, state: State) -> Conversation:
    """Return one side's view of a conversation that has got to this state."""
    conversation = Conversation(side)
    conversation.state = state
    return conversation


@pytest.mark.parametrize("sender", Side)
@pytest.mark.parametrize("state", State)
def test_both_sides_keep_to_the_table(state: State, sender: Side) -> None:
    for kind, message in EXAMPLES.items():
        following = TRANSITIONS[state].get((sender, kind))
        speaker, listener = in_state(sender, state), in_state(OTHER[sender], state)
        if following is None:
            complaint = f"the {sender.value} may not send '{kind}' while {state.value}"
            with pytest.raises(ProtocolError, match=complaint):
                speaker.send(message)
            with pytest.raises(ProtocolError, match=complaint):
                listener.receive(encode(message))
            assert speaker.state is state
        else:
            assert listener.receive(speaker.send(message)) == [message]
            assert speaker.state is listener.state is following


def test_every_message_has_an_example() -> None:
    assert sorted(EXAMPLES) == TYPES


def test_nobody_sends_what_is_the_others_to_send() -> None:
    said = {side: {kind for row in TRANSITIONS.values() for who, kind in row if who is side} for side in Side}
    assert not said[Side.HOST] & said[Side.WORKER]


def test_a_conversation_begins_where_the_worker_says_ready() -> None:
    assert Conversation(Side.HOST).state is Conversation(Side.WORKER).state is State.STARTING


def test_what_is_too_large_to_send_leaves_the_conversation_where_it_was() -> None:
    host = in_state(Side.HOST, State.IDLE)
    with pytest.raises(ProtocolError, match="over the limit"):
        host.send(m.Execute("x" * (MAX_CODE + 1)))
    assert host.state is State.IDLE
    host.send(m.Execute("x"))


def test_nothing_is_taken_for_said_before_it_has_arrived_whole() -> None:
    host = Conversation(Side.HOST)
    raw = encode(m.Ready(1))
    assert host.receive(raw[:-1]) == []
    assert host.state is State.STARTING
    assert host.receive(raw[-1:]) == [m.Ready(1)]


@pytest.mark.slow
@brief
@given(st.sampled_from(Side), st.sampled_from(State), hostile, places)
def test_any_bytes_give_messages_that_may_be_sent_or_a_protocol_error(
    side: Side, state: State, raw: bytes, at: list[int]
) -> None:
    conversation = in_state(side, state)
    try:
        for piece in cut(raw, at):
            for message in conversation.receive(piece):
                assert any((OTHER[side], message.type) in row for row in TRANSITIONS.values())
    except ProtocolError as error:
        str(error).encode()


@unhurried
@given(st.lists(messages, max_size=5), st.sampled_from(State), places)
def test_a_valid_frame_is_taken_exactly_where_the_table_has_it(said: list[m.Message], state: State, at: list[int]) -> None:
    host = in_state(Side.HOST, state)
    expected, allowed = [], True
    for message in said:
        following = TRANSITIONS[state].get((Side.WORKER, message.type))
        if following is None:
            allowed = False
            break
        expected.append(message)
        state = following
    found: list[m.Message] = []
    try:
        for piece in cut(b"".join(map(encode, said)), at):
            found += host.receive(piece)
    except ProtocolError:
        assert not allowed
        assert found == expected[: len(found)]
    else:
        assert allowed
        assert found == expected


class Wire(RuleBasedStateMachine):
    """Two honest sides and the bytes on their way, which arrive late, and cut anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = {side: Conversation(side) for side in Side}
        self.way = {side: bytearray() for side in Side}
        self.said: dict[Side, deque[m.Message]] = {side: deque() for side in Side}

    @rule(side=st.sampled_from(Side), data=st.data())
    def say(self, side: Side, data: st.DataObject) -> None:
        allowed = sorted(kind for who, kind in TRANSITIONS[self.ends[side].state] if who is side)
        if not allowed:
            return
        message = data.draw(BY_TYPE[data.draw(st.sampled_from(allowed))])
        self.way[side] += self.ends[side].send(message)
        self.said[side].append(message)

    @rule(side=st.sampled_from(Side), data=st.data())
    def say_what_may_not_be_said(self, side: Side, data: st.DataObject) -> None:
        end = self.ends[side]
        before = end.state
        kind = data.draw(st.sampled_from([kind for kind in TYPES if (side, kind) not in TRANSITIONS[before]]))
        with pytest.raises(ProtocolError, match="may not send"):
            end.send(EXAMPLES[kind])
        assert end.state is before

    @precondition(lambda self: any(self.way.values()))
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        side = data.draw(st.sampled_from([side for side in Side if self.way[side]]))
        count = data.draw(st.integers(1, len(self.way[side])))
        raw = bytes(self.way[side][:count])
        del self.way[side][:count]
        for message in self.ends[OTHER[side]].receive(raw):
            assert message == self.said[side].popleft()

    @invariant()
    def sides_agree_once_everything_has_arrived(self) -> None:
        if not any(self.way.values()):
            assert not any(self.said.values())
            host, worker = (self.ends[side].state for side in Side)
            # Only an answer that crossed an interrupt leaves them apart, and only over whether a question is open.
            assert host is worker or {host, worker} == {State.BUSY, State.ASKING}


TestWire = Wire.TestCase
TestWire.settings = settings(brief, stateful_step_count=30)


@pytest.mark.parametrize("most", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_two_honest_sides_never_break_the_protocol_whatever_crosses_on_the_way(most: int) -> None:
    """Every reachable pair of states with up to so many messages on their way in each direction, not a sample of them."""
    kinds = {side: sorted({kind for row in TRANSITIONS.values() for who, kind in row if who is side}) for side in Side}
    # Output changes no state: one kind stands for all five.
    kinds[Side.WORKER] = [kind for kind in kinds[Side.WORKER] if kind not in ("part", "display", "clear", "comm")]
    start = (State.STARTING, State.STARTING, (), ())
    seen: set[tuple[State, State, tuple[str, ...], tuple[str, ...]]] = {start}
    todo: list[tuple[State, State, tuple[str, ...], tuple[str, ...]]] = [start]
    while todo:
        host, worker, down, up = todo.pop()
        steps: list[tuple[State, State, tuple[str, ...], tuple[str, ...]]] = []
        for kind in kinds[Side.HOST] if len(down) < most else ():
            if (following := TRANSITIONS[host].get((Side.HOST, kind))) is not None:
                steps.append((following, worker, (*down, kind), up))
        for kind in kinds[Side.WORKER] if len(up) < most else ():
            if (following := TRANSITIONS[worker].get((Side.WORKER, kind))) is not None:
                steps.append((host, following, down, (*up, kind)))
        if down:
            assert (Side.HOST, down[0]) in TRANSITIONS[worker], f"{down[0]} arrives while {worker.value}"
            steps.append((host, TRANSITIONS[worker][Side.HOST, down[0]], down[1:], up))
        if up:
            assert (Side.WORKER, up[0]) in TRANSITIONS[host], f"{up[0]} arrives while {host.value}"
            steps.append((TRANSITIONS[host][Side.WORKER, up[0]], worker, down, up[1:]))
        todo += [step for step in steps if step not in seen]
        seen.update(steps)
    assert len(seen) > 100


def test_nothing_after_what_broke_the_protocol_is_said_to_have_arrived() -> None:
    host = in_state(Side.HOST, State.IDLE)
    with pytest.raises(ProtocolError):
        host.receive(frame({"type": "nonsense"}) + encode(m.Ready(1)))
    assert host.state is State.IDLE
