"""The processes of mwpy: master, agent and overseer. They do what the cores decide."""
