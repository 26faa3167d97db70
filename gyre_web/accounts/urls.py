"""Addresses of sign-in, account and people."""

from django.urls import path

from gyre_web.accounts import views

app_name = "accounts"
urlpatterns = [
    path("sign-in", views.SignIn.as_view(), name="sign_in"),
    path("sign-in/<str:secret>", views.link, name="link"),
    path("sign-out", views.sign_out, name="sign_out"),
    path("account", views.account, name="account"),
    path("account/password", views.password, name="password"),
    path("account/theme", views.theme, name="theme"),
    path("account/tokens", views.create_token, name="create_token"),
    path("account/tokens/<int:pk>/revoke", views.revoke_token, name="revoke_token"),
    path("people", views.people, name="people"),
    path("people/<uuid:pk>/link", views.new_link, name="new_link"),
    path("people/<uuid:pk>/change", views.change_person, name="change_person"),
]
