"""What code defines: symbols and bindings, without running it."""
