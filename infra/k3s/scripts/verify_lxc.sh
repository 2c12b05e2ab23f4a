# Checks, inside the container, what only root on its Proxmox host can set. Changes nothing; reports every fault at once.
receive
faults=0
fault() {
    faults=$((faults + 1))
    say "[LXC-06] $(hostname): found $1; expected $2; on the Proxmox host run: ./fleet runbook $(setting node site) lxc-host"
}
[ -r /dev/kmsg ] || fault "no readable /dev/kmsg" "the device in the container"
while read -r device; do
    [ -z "$device" ] || [ -e "$device" ] || fault "no $device" "the device of the host"
done < "$work/devices"
profile=$(cat /proc/self/attr/current 2>/dev/null || echo unconfined)
case $profile in '' | unconfined*) ;; *) fault "AppArmor profile $profile" "unconfined" ;; esac
[ -w /proc/sys/kernel ] || fault "a read-only /proc/sys" "proc:rw sys:rw"
full=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status)
case $full in *ffffffff) ;; *) fault "capabilities $full" "all of them" ;; esac
while read -r module; do
    [ -z "$module" ] || [ -d "/sys/module/$module" ] || fault "kernel module $module not loaded" "it loaded at boot of the host"
done < "$work/modules"
while IFS='=' read -r name wanted; do
    [ -n "$name" ] || continue
    value=$(cat "/proc/sys/$(printf %s "$name" | tr . /)" 2>/dev/null || echo 0)
    [ "${value:-0}" -ge "$wanted" ] || fault "$name = $value" "at least $wanted"
done < "$work/minimums"
for controller in cpu cpuset memory pids; do
    grep -qw "$controller" /sys/fs/cgroup/cgroup.controllers 2>/dev/null || fault "no cgroup v2 controller $controller" "it"
done
[ "$faults" -eq 0 ] || exit 3
