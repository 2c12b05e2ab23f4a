"""What a person runs against sites beside plain `pulumi up`: update behind the guard, adoption, backup, routers."""
