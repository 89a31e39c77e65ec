"""The decisions of an overseer. `core` joins the parts; they share one `state`."""
