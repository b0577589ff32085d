"""Labels of trials by people: the draw, what was said, agreement; and model judges measured by them."""
