"""Steps that move a guest from the state of an older Pulumi project into this one, without touching the guest.

Leaves out running them: two states change, and the older project belongs to somebody who must agree.
"""

from infra.adopted import import_id
from infra.config import Lxc, Vm


def runbook(site_id: str, guest: Vm | Lxc) -> str:
    """Steps in order, each with what it must show before the next one."""
    kind = "container" if isinstance(guest, Lxc) else "VM"
    types = "[Cc]ontainer" if isinstance(guest, Lxc) else "[Vv]m|VirtualMachine"
    part = "GpuContainer" if isinstance(guest, Lxc) else "VirtualMachine"
    name = f"guest-{guest.name}-{'ct' if isinstance(guest, Lxc) else 'vm'}"
    token = "containerLegacy:ContainerLegacy" if isinstance(guest, Lxc) else "vmLegacy:VmLegacy"
    older, ours = f"{guest.name}-older.json", f"{guest.name}-fleet.json"
    done = f"\nThe document says that this is done: {guest.handed_over}\n" if guest.handed_over else ""
    return f"""\
# Hand over {guest.name} ({kind} {guest.vmid} on {guest.host})

From the Pulumi project {guest.older_project} to this one, stack {site_id}. Only states change: the {kind} runs on
and is not restarted. Never `pulumi destroy`, in either project; never remove the {kind} from the program of the older
project and run `pulumi up` there: both delete the real {kind}. From step 2 to step 7 nobody runs `pulumi up` there.
{done}
OLDER stands for a checkout of {guest.older_project}, STACK for its stack (`pulumi stack ls` there).

1. Save both states, and keep the files: they are the way back.

    cd OLDER && pulumi stack export -s STACK --file {older}
    pulumi stack export -s {site_id} --file {ours}
    sha256sum OLDER/{older} {ours}

2. Find the {kind} in the older state, by kind and VMID. It must print exactly one URN; note it as URN.

    jq -r '.deployment.resources[] | select((.type | test("{types}")) and
        (.id == "{guest.vmid}" or .inputs.vmId == {guest.vmid} or .outputs.vmId == {guest.vmid})) | .urn' \\
        OLDER/{older}

   None: the older stack does not hold it, or another stack does. Two: read both before you go on.

3. Stop the older project: say so to whoever runs it, and switch off its automation. Then it must show no change:

    cd OLDER && pulumi preview -s STACK --expect-no-changes

4. Make the document true, until this prints nothing but "Nothing differs":

    ./fleet adopt {site_id}

   Then write under guests.{guest.name} in Pulumi.{site_id}.yaml what was done so far. Without it an
   update stops with PVE-10:

        handed_over: "older state saved (sha256 ...) and stopped on <date> by <who>; import follows"

5. Import it here. The preview must show `import` for {name}, [id={import_id(guest)}], and neither an update, a
   replacement nor a deletion of it. Only then:

    pulumi preview -s {site_id} --diff
    pulumi up -s {site_id}

6. The import must be complete: the resource is in this state, protected, and nothing is left to change.

    pulumi preview -s {site_id} --expect-no-changes
    pulumi stack export -s {site_id} | jq -r '.deployment.resources[] |
        select(.urn | endswith("{part}$proxmoxve:index/{token}::{name}")) | [.id, .protect] | @tsv'

   Expected: {guest.vmid} and true. Otherwise go no further; the older project still holds it.

7. Let go of it there. This changes the state of the older project and nothing else. Where the resource is protected
   there, lift that first; where others depend on it, read what it lists before you add --target-dependents.

    cd OLDER && pulumi state unprotect -s STACK 'URN' --yes
    cd OLDER && pulumi state delete -s STACK 'URN'

   The single quotes matter: URNs hold $. Then take the {kind} out of the program of the older project in the
   same change, and look that its preview plans no creation and no deletion:

    cd OLDER && pulumi preview -s STACK --expect-no-changes

8. Write the evidence into the document and commit it:

        handed_over: "<date> <who>: URN deleted there (backup sha256 ...); previews of both projects empty"

Way back, before step 7: `pulumi state unprotect` and `pulumi state delete` of {name} here. After it:
`pulumi stack import -s STACK --file {older}` in OLDER, then the same here. Neither touches the {kind} itself.
"""
