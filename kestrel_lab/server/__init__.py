"""One protocol to watch runs and decide what they wait for, over several transports."""
