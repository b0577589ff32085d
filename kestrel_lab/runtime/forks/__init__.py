"""Files of forks: what they were at an event, the private copy in which a fork works, and taking its changes
over.
"""
