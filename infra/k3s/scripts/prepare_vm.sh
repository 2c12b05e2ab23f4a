# Base system of a VM: kernel modules, sysctls, time, and who may log in beside the program.
receive
changed=$(put "$work/modules" /etc/modules-load.d/fleet-k3s.conf 0644)
while read -r module; do [ -z "$module" ] || modprobe "$module" 2>/dev/null || true; done < "$work/modules"
changed=$changed$(put "$work/sysctl" /etc/sysctl.d/90-fleet-k3s.conf 0644)
if [ -n "$changed" ]; then sysctl -q --system >/dev/null 2>&1 || true; fi
if [ -n "$(put "$work/timesyncd" /etc/systemd/timesyncd.conf.d/fleet.conf 0644)" ]; then
    systemctl restart systemd-timesyncd >/dev/null 2>&1 || true
fi
home=$(getent passwd "$(setting node user)" | cut -d : -f 6)
if [ -n "$home" ] && [ -d "$home" ]; then
    mkdir -p "$home/.ssh"
    put "$work/operators" "$home/.ssh/authorized_keys2" 0600 >/dev/null
    chown -R "$(setting node user)" "$home/.ssh" 2>/dev/null || true
fi
