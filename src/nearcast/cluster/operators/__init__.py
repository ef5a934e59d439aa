"""What nodes ask each other for the operators at one of them.

Does not know what is asked: that is `nearcast.server.cluster.node_requests`.

Read next: `questions.py`.
"""
