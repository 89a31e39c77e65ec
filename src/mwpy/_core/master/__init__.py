"""The master's decisions: admission, dispatch, results, losses and silence, over one state."""
