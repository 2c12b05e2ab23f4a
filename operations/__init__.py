"""What a person runs against sites beside plain `pulumi up`: preview and update behind the guard, adoption, backup."""
