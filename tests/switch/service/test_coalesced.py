"""Equal questions share answers, and nobody gets one that was made before he asked."""

from __future__ import annotations

import asyncio

import pytest

from inagg_switch.service.coalesced import Coalesced


def test_whoever_asks_together_shares_an_answer_that_is_made_after_all_asked() -> None:
    made: list[int] = []
    asked = 0

    async def make() -> int:
        made.append(asked)
        await asyncio.sleep(0.01)
        return len(made)

    async def main() -> None:
        nonlocal asked
        answers: Coalesced[int] = Coalesced(0.0)
        first = [asyncio.create_task(answers.get("q", make)) for _ in range(50)]
        await asyncio.sleep(0.005)  # the first answer is being made
        asked = 1
        second = [asyncio.create_task(answers.get("q", make)) for _ in range(50)]
        assert set(await asyncio.gather(*first)) == {1}
        assert set(await asyncio.gather(*second)) == {2}
        assert made == [0, 1]

    asyncio.run(main())


def test_the_same_question_is_answered_once_in_an_interval_however_often_it_is_asked() -> None:
    made = 0

    async def make() -> None:
        nonlocal made
        made += 1

    async def ask(answers: Coalesced[None], until: float) -> None:
        while asyncio.get_running_loop().time() < until:
            await answers.get("q", make)

    async def main() -> None:
        answers: Coalesced[None] = Coalesced(0.05)
        until = asyncio.get_running_loop().time() + 0.5
        await asyncio.gather(*(ask(answers, until) for _ in range(30)))

    asyncio.run(main())
    assert 1 < made <= 12


def test_an_error_goes_to_all_who_asked_and_the_next_is_answered_anew() -> None:
    async def fail() -> int:
        raise ValueError("no")

    async def work() -> int:
        return 7

    async def main() -> None:
        answers: Coalesced[int] = Coalesced(0.0)
        outcomes = await asyncio.gather(*(answers.get("q", fail) for _ in range(3)), return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["no"] * 3
        assert await answers.get("q", work) == 7

    asyncio.run(main())


def test_one_who_goes_does_not_take_the_answer_from_the_others() -> None:
    async def make() -> int:
        await asyncio.sleep(0.02)
        return 7

    async def main() -> None:
        answers: Coalesced[int] = Coalesced(0.0)
        one, other = (asyncio.create_task(answers.get("q", make)) for _ in range(2))
        await asyncio.sleep(0.005)
        one.cancel()
        assert await other == 7
        with pytest.raises(asyncio.CancelledError):
            await one

    asyncio.run(main())


def test_questions_that_nobody_asks_any_more_are_forgotten() -> None:
    async def make() -> int:
        return 7

    async def main() -> None:
        answers: Coalesced[int] = Coalesced(0.01)
        for number in range(100):
            await answers.get(number, make)
        await asyncio.sleep(0.02)
        assert (answers._next, answers._making, answers._made_at) == ({}, {}, {})

    asyncio.run(main())


def test_different_questions_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        answers: Coalesced[int] = Coalesced(0.0)
        never = asyncio.Event()

        async def stuck() -> int:
            await never.wait()
            return 1

        async def quick() -> int:
            return 2

        waits = asyncio.create_task(answers.get("a", stuck))
        assert await asyncio.wait_for(answers.get("b", quick), 5) == 2
        waits.cancel()
        never.set()

    asyncio.run(main())
