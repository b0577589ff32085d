"""Operations in which several agents, or a workflow of their own, do the work of one step."""
