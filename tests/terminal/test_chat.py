from __future__ import annotations

import asyncio
import io
import signal
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from radixserve.engine.frontend import TextDelta, TextRequest
from radixserve.errors import InvalidRequestError, ServerError
from radixserve.terminal import chat as module
from radixserve.terminal.answer import Message, Piece, Pieces, TokenCounts
from radixserve.terminal.chat import Chat, Voice, chat
from radixserve.terminal.local import InProcess
from radixserve.tokens import pack
from tests.server.fake import FakeFrontend, FakeTokenizer
from tests.terminal.stub import HandClock, Stub, hosting

ANSWER = (
    Piece(text="Hel"),
    Piece(text="lo", finish="stop"),
    Piece(counts=TokenCounts(prompt=1230, completion=5, cached=1204)),
)


class Talk:
    """A conversation with somebody whose pieces, or faults, are given."""

    def __init__(
        self,
        lines: Iterable[str | BaseException],
        pieces: Iterable[Piece | BaseException] = ANSWER,
        *,
        system: str | None = None,
        halt: bool = False,
        cache_line: Callable[[], str] | None = None,
        out: io.StringIO | None = None,
    ):
        self.asked: list[list[Message]] = []
        self.stopped = 0
        self.streams: list[Pieces] = []
        self._lines = iter(lines)
        self._pieces = list(pieces)
        self._clock = HandClock()
        self._out, self._notes = out or io.StringIO(), io.StringIO()
        screen, notes = (Console(file=each, width=200) for each in (self._out, self._notes))
        voice = Voice("somebody", self._ask, cache_line)
        Chat(voice, self._read, screen, notes, system=system, halt=halt, clock=self._clock).run()

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def notes(self) -> str:
        return self._notes.getvalue()

    def _read(self) -> str:
        line = next(self._lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    def _ask(self, messages: list[Message]) -> Pieces:
        self.streams.append(self._stream(messages))
        return self.streams[-1]

    def _stream(self, messages: list[Message]) -> Pieces:
        self.asked.append(messages)
        finished = False
        try:
            for piece in self._pieces:
                self._clock.now += 0.25
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
            finished = True
        finally:
            self.stopped += not finished


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def test_an_answer_is_followed_by_what_it_took():
    talk = Talk(["Hi"])
    assert talk.out == "Hello\n"
    assert talk.notes == (
        "reused 1,204 of 1,230 prompt tokens, computed 26, first token in 0.25 s, 16 tok/s\n\n"
    )


def test_each_question_carries_the_conversation_before_it():
    talk = Talk(["Hi", "", "  More?  "], system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    assert talk.asked == [
        [system, user("Hi")],
        [system, user("Hi"), assistant("Hello"), user("More?")],
    ]


def test_reuse_that_nobody_reports_is_not_made_up():
    pieces = [Piece(text="Yes", finish="length"), Piece(counts=TokenCounts(7, 1, None))]
    talk = Talk(["Hi"], pieces)
    assert talk.notes.strip() == (
        "7 prompt tokens, reuse not reported, first token in 0.25 s, cut at the token limit"
    )
    assert Talk(["Hi"], pieces[:1]).notes.startswith("first token in 0.25 s")


def test_text_is_shown_as_it_is_and_cannot_steer_the_terminal():
    talk = Talk(["Hi"], [Piece(text="[red]:smile: \x1b[2J" + "x" * 300), Piece(finish="stop")])
    assert talk.out == "[red]:smile: [2J" + "x" * 300 + "\n"


def test_reasoning_is_shown_and_not_sent_back():
    talk = Talk(["Hi", "More"], [Piece(thought="Hm. "), Piece(text="Yes", finish="stop")])
    assert talk.out.startswith("Hm. Yes\n")
    assert talk.asked[1] == [user("Hi"), assistant("Yes"), user("More")]


def test_ctrl_c_stops_the_answer_keeps_what_there_is_and_goes_on():
    talk = Talk(["Hi", "More"], [Piece(text="Hel"), KeyboardInterrupt()])
    assert talk.stopped == 2
    assert talk.out == "Hel\nHel\n"
    assert "first token in 0.25 s, stopped" in talk.notes
    assert talk.asked[1] == [user("Hi"), assistant("Hel"), user("More")]


class Interrupted(io.StringIO):
    """A screen on which Ctrl-C is pressed while the answer is written."""

    pressed = False

    def write(self, text: str) -> int:
        if "lo" in text and not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return super().write(text)


def test_ctrl_c_between_two_pieces_stops_the_answer_too():
    talk = Talk(["Hi"], out=Interrupted())
    assert talk.stopped == 1
    assert "stopped" in talk.notes


def test_an_answer_stopped_before_its_first_token_leaves_no_trace():
    talk = Talk(["Hi", "More"], [KeyboardInterrupt()])
    assert talk.asked[1] == [user("More")]


@pytest.mark.parametrize("end", [EOFError(), KeyboardInterrupt(), "/exit", "/quit"])
def test_there_are_several_ways_to_leave(end: str | BaseException):
    talk = Talk(["Hi", end, "not asked"])
    assert len(talk.asked) == 1


def test_new_forgets_the_conversation_and_keeps_the_system_prompt():
    talk = Talk(["Hi", "/new", "Again"], system="s")
    assert talk.asked[1] == [{"role": "system", "content": "s"}, user("Again")]


def test_system_shows_and_sets_the_system_prompt():
    talk = Talk(["/system", "/system Be [bold]kind", "/system", "Hi"])
    assert talk.asked == [[{"role": "system", "content": "Be [bold]kind"}, user("Hi")]]
    lines = talk.notes.splitlines()
    assert lines[0] == "There is no system prompt."
    assert "computes everything anew" in lines[1]
    assert lines[2] == "Be [bold]kind"


def test_stats_add_the_answers_up():
    talk = Talk(["Hi", "More", "/stats"], cache_line=lambda: "cache: full")
    assert (
        "2 answers, 2,460 prompt tokens, 2,408 of them reused (98%), 10 tokens generated\n"
        "cache: full\n"
    ) in talk.notes


def test_stats_begin_at_zero_and_count_as_people_do():
    assert "1 answer, " in Talk(["Hi", "/stats"]).notes
    assert Talk(["/stats"]).notes.startswith("0 answers, 0 prompt tokens, 0 tokens generated")


def test_help_lists_every_command():
    help_text = Talk(["/help"]).notes
    assert all(name in help_text for name in ("/new", "/system", "/stats", "/exit", "Ctrl-C"))


def test_an_unknown_command_is_not_sent_to_the_model():
    talk = Talk(["/frobnicate now"])
    assert not talk.asked
    assert "There is no /frobnicate" in talk.notes


def test_an_answer_that_fails_is_one_line_and_the_conversation_goes_on_without_it():
    talk = Talk(["Hi", "More"], [Piece(text="Hel"), ServerError("It is [full].")])
    assert talk.notes.count("Error: It is [full].\n") == 2
    assert talk.asked[1] == [user("More")]


def test_an_answer_that_fails_ends_a_script():
    with pytest.raises(ServerError, match="full"):
        Talk(["Hi", "More"], [ServerError("It is full.")], halt=True)


def run(*arguments: str, questions: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(chat)
    return CliRunner().invoke(app, list(arguments), input=questions)


def test_piped_questions_are_answered_line_by_line_without_colours():
    stub = Stub(HandClock(), key="k")
    with hosting(stub.app) as url:
        result = run(
            *("--url", url, "--api-key", "k", "--system", "s", "--temperature", "0"),
            *("--max-tokens", "9", "--salt", "mine"),
            questions="Hi\nMore?\n",
        )
    assert result.exit_code == 0
    assert result.stdout == "Hello\nHello\n"
    assert "stub at http://127.0.0.1" in result.stderr
    assert "reused 3 of 5 prompt tokens, computed 2" in result.stderr
    assert "\x1b" not in result.output
    sent = stub.bodies[0]
    assert (sent["temperature"], sent["max_tokens"], sent["cache_salt"]) == (0, 9, "mine")


def test_a_server_that_was_named_and_cannot_be_asked_ends_the_command():
    with hosting(Stub(HandClock(), models=[]).app) as url:
        result = run("--url", url, questions="Hi\n")
    assert result.exit_code == 1
    assert isinstance(result.exception, ServerError)
    assert "lists no model" in str(result.exception)


def test_a_local_server_is_asked_first(monkeypatch: pytest.MonkeyPatch):
    with hosting(Stub(HandClock()).app) as url:
        monkeypatch.setattr(module, "DEFAULT_URL", url)
        result = run(questions="Hi\n")
    assert result.stdout == "Hello\n"


class ChatTokenizer(FakeTokenizer):
    def encode_chat(self, messages: list[Message]) -> bytes:
        return pack(list(self.render_chat(messages).encode()))


class Engine(FakeFrontend):
    """Presses Ctrl-C in mid-answer if told to."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = ChatTokenizer()
        self.ctrl_c = False
        self.dropped = 0

    async def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta, None]:
        finished = False
        try:
            async with aclosing(super().generate(request)) as deltas:
                async for delta in deltas:
                    yield delta
                    if self.ctrl_c:
                        signal.raise_signal(signal.SIGINT)
                        await asyncio.Event().wait()
            finished = True
        finally:
            self.dropped += not finished


def test_without_a_server_the_demo_model_runs_here_and_says_so(monkeypatch: pytest.MonkeyPatch):
    engine = Engine()
    made: list[tuple[str | None, dict[str, object]]] = []

    def make(model: str | None, **settings: object) -> InProcess:
        made.append((model, settings))
        return InProcess(model, **settings, frontend=engine)  # type: ignore[arg-type]

    monkeypatch.setattr("radixserve.terminal.local.InProcess", make)
    monkeypatch.setattr(module, "DEFAULT_URL", "http://127.0.0.1:9")
    result = run("--salt", "mine", questions="Hi\nHi\n/stats\n")
    assert made == [(None, {"temperature": None, "max_tokens": None, "salt": "mine"})]
    assert result.stdout == "Hello!\nHello!\n"
    assert "Running the demo model in this process instead." in result.stderr
    assert "fake/model in this process" in result.stderr
    assert "reused 0 of 19 prompt tokens, computed 19" in result.stderr
    assert "cache: 25 of 100 pages" in result.stderr
    assert not engine.alive
    assert len({request.namespace for request in engine.requests}) == 1
    assert b"mine" in engine.requests[0].namespace


def test_the_model_s_own_sampling_defaults_hold_where_nothing_is_said():
    engine = Engine()
    engine.card.defaults.update(top_p=0.5, temperature=0.3)
    with InProcess(temperature=0.0, max_tokens=3, frontend=engine) as local:
        text = "".join(piece.text for piece in local.stream([user("Hi")]))
    sampling = engine.requests[0].sampling
    assert text == "Hel"
    assert (sampling.top_p, sampling.temperature, sampling.max_tokens) == (0.5, 0.0, 3)


def test_an_answer_that_is_dropped_is_aborted_in_the_engine():
    engine = Engine()
    with InProcess(frontend=engine) as local:
        pieces = local.stream([user("Hi")])
        assert next(pieces).text == "H"
        assert not engine.dropped
        pieces.close()
        assert engine.dropped == 1
        assert "".join(piece.text for piece in local.stream([user("Hi")])) == "Hello!"


@pytest.fixture
def heard() -> Iterator[None]:
    """SIGINT is heard, also where the tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_stops_the_engine_s_answer_and_the_next_one_comes():
    engine = Engine()
    engine.ctrl_c = True
    with InProcess(frontend=engine) as local:
        pieces = local.stream([user("Hi")])
        assert next(pieces).text == "H"
        with pytest.raises(KeyboardInterrupt):
            next(pieces)
        assert engine.dropped == 1
        engine.ctrl_c = False
        assert "".join(piece.text for piece in local.stream([user("Hi")])) == "Hello!"


def test_a_setting_that_cannot_be_is_refused_before_a_model_is_loaded():
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        InProcess("no/such-model", max_tokens=-1)
