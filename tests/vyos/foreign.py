"""A made-up router of a site, in use long before this program: nothing of it is ours. In the form of a saved file."""

FOREIGN = """\
/* top comment */
firewall {
    global-options {
        state-policy {
            established {
                action "accept"
            }
            invalid {
                action "drop"
            }
        }
    }
    group {
        network-group ADMIN {
            network "10.9.0.0/24"
        }
    }
    ipv4 {
        forward {
            filter {
                default-action "accept"
                rule 5010 {
                    action "accept"
                    description "printers"
                }
            }
        }
        name LAN-LOCAL {
            default-action "drop"
            rule 10 {
                action "accept"
                protocol "tcp"
                destination {
                    port "22"
                }
            }
        }
        name WAN-LAN {
            default-action "drop"
        }
        name WAN-LOCAL {
            default-action "drop"
            rule 10 {
                action "accept"
                state "established"
                state "related"
            }
        }
    }
    zone LAN {
        interface "eth1"
        from WAN {
            firewall {
                name "WAN-LAN"
            }
        }
    }
    zone LOCAL {
        local-zone
        from WAN {
            firewall {
                name "WAN-LOCAL"
            }
        }
    }
}
interfaces {
    ethernet eth0 {
        address "dhcp"
        description 'it\\'s "outside"'
    }
    wireguard wg9 {
        address "10.9.9.1/24"
        private-key "cHJpdmF0ZS1rZXktb2YtcGVvcGxlLW9uLXRoZS1yb2E="
        peer laptop {
            allowed-ips "10.9.9.2/32"
            public-key "bGFwdG9wLXB1YmxpYy1rZXktMDAwMDAwMDAwMDAwMDA="
        }
    }
}
nat {
    source {
        rule 100 {
            outbound-interface {
                name "eth0"
            }
            translation {
                address "masquerade"
            }
        }
    }
}
policy {
    route-map UPSTREAM {
        rule 10 {
            action "permit"
        }
    }
}
protocols {
    bgp {
        neighbor 198.51.100.1 {
            address-family {
                ipv4-unicast {
                    route-map {
                        import "UPSTREAM"
                    }
                }
            }
            remote-as "64500"
        }
        system-as "65001"
    }
    static {
        route 0.0.0.0/0 {
            next-hop 198.51.100.254 {
            }
        }
    }
}
system {
    host-name "edge"
    login {
        user vyos {
            authentication {
                encrypted-password "$6$notreal"
            }
        }
    }
}


// Warning: Do not remove the following line.
// vyos-config-version: "bgp@6:firewall@15:nat@8"
// Release version: made up
"""
