"""What can go wrong with a request once it is understood. HTTP gives each its status."""

from __future__ import annotations

from caldrix.errors import CaldrixError


class QueueFull(CaldrixError):
    """As many requests wait as may wait."""

    def __init__(self) -> None:
        super().__init__("the request queue is full")


class EngineUnavailable(CaldrixError):
    """The engine has stopped, or is stopping: it takes no request and ends those it had."""

    def __init__(self) -> None:
        super().__init__("the engine is unavailable")


class EngineFailed(CaldrixError):
    """The engine failed while it worked on this request; others are not concerned."""

    def __init__(self) -> None:
        super().__init__("the engine failed during the request")


class UnknownToken(CaldrixError):
    """The prompt holds a token id for which the model has no embedding.

    A tokenizer can have more ids than its model: published text models keep those of pictures.
    """

    def __init__(self, token: int, vocab_size: int) -> None:
        super().__init__(
            f"the prompt holds the token {token}, and the model's tokens are 0 to {vocab_size - 1}"
        )
        self.token = token
        self.vocab_size = vocab_size


class PromptTooLong(CaldrixError):
    """The prompt leaves no room in the context for one generated token."""

    def __init__(self, prompt_tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt is {prompt_tokens} tokens, and the context of {context} tokens "
            f"takes prompts of at most {context - 1}"
        )
        self.prompt_tokens = prompt_tokens
        self.context = context
