"""Operations: steps of a plan that the runtime carries out itself."""
