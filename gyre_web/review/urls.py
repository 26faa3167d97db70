"""Addresses of review."""

from django.urls import path

from gyre_web.review import pair_views, views

app_name = "review"
urlpatterns = [
    path("review", views.index, name="index"),
    path("compare", pair_views.compare_page, name="compare"),
    path("compare/judge", pair_views.save, name="save_pair"),
    path("review/pairs/next", pair_views.next_pair, name="next_pair"),
    path("review/<uuid:queue_id>/next", views.next_item, name="next"),
    path("review/<uuid:queue_id>/items/<uuid:rollout_id>/skip", views.skip, name="skip"),
    path("review/<uuid:queue_id>/close", views.close, name="close"),
    path("rollouts/<uuid:rollout_id>/labels", views.save_label, name="save_label"),
]
