"""The way of a sandbox to named hosts, and to nothing else.

From:  environments.life, for a task whose task.toml names hosts (rules.py).
To:    a proxy on a unix socket that is bound into the sandbox (proxy.py); EgressRequest rows (record.py).
"""
