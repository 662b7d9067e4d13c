"""The language of pruning functions: vocabulary, trees, text, and the static check. No torch here."""
