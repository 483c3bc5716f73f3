"""Fields of OpenAI's and vLLM's requests that change nothing here, and those that are refused."""

from typing import Final

NO_EFFECT: Final = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "prediction",
        "request_id",
    }
)
"""Fields that are accepted and change nothing."""

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "length_penalty": (1,),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "use_beam_search": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": ([], ["text"]),
    "audio": (),
    "suffix": ("",),
    "web_search_options": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "prompt_embeds": (),
}
"""Field -> values that change nothing. Any other value is refused, because the answer would be wrong."""
