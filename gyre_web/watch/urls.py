"""Addresses of the rollout page and the wall, and of their data."""

from django.urls import path

from gyre_web.watch import views

app_name = "watch"
urlpatterns = [
    path("rollouts/<uuid:rollout_id>", views.rollout, name="rollout"),
    path("rollouts/<uuid:rollout_id>/snapshot", views.snapshot, name="snapshot"),
    path("rollouts/<uuid:rollout_id>/nodes", views.nodes, name="nodes"),
    path("rollouts/<uuid:rollout_id>/nodes/<int:index>", views.node, name="node"),
    path("rollouts/<uuid:rollout_id>/nodes/<int:index>/tokens", views.node_tokens, name="tokens"),
    path("rollouts/<uuid:rollout_id>/find", views.find, name="find"),
    path("rollouts/<uuid:rollout_id>/timeline", views.timeline, name="timeline"),
    path("rollouts/<uuid:rollout_id>/terminal", views.terminal, name="terminal"),
    path("rollouts/<uuid:rollout_id>/changes", views.changes, name="changes"),
    path("rollouts/<uuid:rollout_id>/verifier", views.verifier, name="verifier"),
    path("rollouts/<uuid:rollout_id>/network", views.network, name="network"),
    path("rollouts/<uuid:rollout_id>/raw", views.raw, name="raw"),
    path("rollouts/<uuid:rollout_id>/calls/<int:index>/request", views.call_request, name="request"),
    path("rollouts/<uuid:rollout_id>/fork", views.fork, name="fork"),
    path("runs/<uuid:run_id>/wall", views.run_wall, name="wall"),
    path("runs/<uuid:run_id>/wall/data", views.wall_data, name="wall_data"),
]
