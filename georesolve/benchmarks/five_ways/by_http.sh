curl --silent --fail-with-body -F "observations=@$1" -F "references=@$2" -F k=3 -F max_distance_m=50000 -F columns=name "$GEORESOLVE_URL/resolve" -o "$3"
