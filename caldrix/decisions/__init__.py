"""System One: typed questions about a state, their prompts, and answers from logits. Sans-IO."""
