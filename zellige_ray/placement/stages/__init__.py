"""The two stages of the Zellige planner: anchors into pools of ranks, fillers into what is left, then the pouring."""
