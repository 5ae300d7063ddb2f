from test_client import *
from test_client import serving, a_request
def test_dbg(configured, registered, unused_port):
    import httpx
    with Client(f"http://127.0.0.1:{unused_port}") as client:
        with serving(unused_port, configured):
            job, _ = client.request_job(a_request())
            events = client.events(job.id)
            first=next(events); print(first.id, first.data["state"])
        with session_scope() as session:
            print(cancel_job(session, job.id).state)
        with serving(unused_port, configured):
            print(client.job(job.id).state)
            r = httpx.get(f"http://127.0.0.1:{unused_port}/v1/jobs/{job.id}/events", headers={"Last-Event-ID": first.id}, timeout=5)
            print(r.status_code, r.text)
            client._http.timeout=5
            import traceback
            try:
                orig=client._stream
                def st(p,l):
                    print("stream",p,l); return orig(p,l)
                client._stream=st
                for e in events: print(e)
            except BaseException as e: traceback.print_exc()
